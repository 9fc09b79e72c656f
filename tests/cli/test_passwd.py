# `weir passwd`: one line of a password file is changed, and nothing else.
import os
import pty
import select
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from broker.auth.passwords import ITERATIONS, hash_password, parse_passwords
from tests.cli.running import weir

PATIENCE = 20.0  # seconds for what takes milliseconds
OTHERS = f"# staff\n\nbob:{hash_password(b'x', b'twelve bytes', 1)}\n# end\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "passwords"
    file.write_text(OTHERS)
    return file


def passwd(*arguments: object, typed: str = "") -> subprocess.CompletedProcess[str]:
    return weir("passwd", *map(str, arguments), typed=typed)


def takes(file: Path, user: str, password: bytes) -> bool:
    return parse_passwords(file.read_text(), b"key").check(user, password)()


def test_a_user_is_added_and_all_else_stays(file: Path) -> None:
    """A password could not be set, or others and comments be lost with it."""
    done = passwd(file, "alice", typed="s3cret\n")

    assert (0, f"User alice was added to {file}.\n", "") == (done.returncode, done.stdout, done.stderr)
    assert takes(file, "alice", b"s3cret")
    assert file.read_text().startswith(OTHERS)
    assert f"alice:$7${ITERATIONS}$" in file.read_text()


def test_a_password_is_changed(file: Path) -> None:
    """The former password would stay good."""
    done = passwd(file, "bob", "--iterations", 2, typed="new word\r\n")

    assert (0, f"The password of user bob in {file} was changed.\n") == (done.returncode, done.stdout)
    assert [True, False] == [takes(file, "bob", password) for password in (b"new word", b"x")]
    assert ["# staff", "", "# end", ""] == [
        line for line in file.read_text().split("\n") if not line.startswith("bob:$7$2$")
    ]


def test_a_user_is_deleted(file: Path) -> None:
    """Nobody could be taken out again."""
    done = passwd(file, "bob", "--delete")

    assert (0, f"User bob was removed from {file}.\n") == (done.returncode, done.stdout)
    assert "# staff\n\n# end\n" == file.read_text()


def test_a_file_is_made_when_that_is_asked_for(tmp_path: Path) -> None:
    """A misspelt path would silently make a file that no broker reads; or a first file could not be made."""
    file = tmp_path / "new"
    refused = passwd(file, "alice", typed="x\n")
    assert (2, f"weir: there is no file {file}; `--create` creates it.\n") == (refused.returncode, refused.stderr)
    assert not file.exists()

    assert 0 == passwd(file, "alice", "--create", typed="x\n").returncode
    assert 0 == passwd(file, "bob", "--create", typed="y\n").returncode
    assert takes(file, "alice", b"x")
    assert takes(file, "bob", b"y")


def test_only_the_owner_may_read_the_file(file: Path) -> None:
    """Everybody on the machine could try the hashes at leisure."""
    file.chmod(0o644)
    passwd(file, "alice", typed="x\n")

    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert [file.name] == os.listdir(file.parent)  # and nothing is left beside it


def test_a_link_stays_a_link(file: Path) -> None:
    """The file that others share would be left as it was, and a copy be changed."""
    link = file.parent / "link"
    link.symlink_to(file)
    passwd(link, "alice", typed="x\n")

    assert link.is_symlink()
    assert takes(file, "alice", b"x")


@pytest.mark.parametrize(
    ("text", "arguments", "typed", "words"),
    [
        (OTHERS, ["alice"], "\n", "the password is empty: it must have at least one character."),
        (OTHERS, ["alice"], "", "the password is empty: it must have at least one character."),
        (OTHERS, ["a:b"], "x\n", "user name 'a:b': it must be "),
        (OTHERS, ["alice", "--delete"], "", "there is no user 'alice' in "),
        ("bob:plain\n", ["alice"], "x\n", "passwords, line 1: not a password hash that Weir knows"),
        ("bob:plain\n", ["alice", "--delete"], "", "passwords, line 1: "),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_changes_nothing(
    file: Path, text: str, arguments: list[str], typed: str, words: str
) -> None:
    """A file would be broken, or a user have a password that cannot be typed."""
    file.write_text(text)
    done = passwd(file, *arguments, typed=typed)

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert done.stderr.startswith("weir: ")
    assert words in done.stderr
    assert text == file.read_text()


def test_a_file_that_is_not_text_and_a_folder_that_is_not_there_are_told(tmp_path: Path) -> None:
    """The user would get a traceback."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    done = [passwd(binary, "a", typed="x\n"), passwd(tmp_path / "no" / "file", "a", "--create", typed="x\n")]

    assert f"weir: cannot read {binary}: it is not UTF-8.\n" == done[0].stderr
    assert f"weir: cannot write {tmp_path / 'no' / 'file'}: No such file or directory.\n" == done[1].stderr
    assert [2, 2] == [one.returncode for one in done]


@pytest.mark.parametrize(("second", "code"), [(b"s3cret\n", 0), (b"typo\n", None)])
def test_at_a_terminal_it_is_asked_for_twice_and_not_shown(file: Path, second: bytes, code: int | None) -> None:
    """A slip of the finger would lock somebody out, or a bystander read along."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "cli", "passwd", str(file), "alice"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    for prompt, answer in ((b"assword: ", b"s3cret\n"), (b"onfirmation: ", second)):
        shown += read_until(ours, prompt)
        os.write(ours, answer)
    if code is None:  # asked again
        shown += read_until(ours, b"Password: ")
        process.terminate()
    else:
        assert code == process.wait(PATIENCE)
        assert takes(file, "alice", b"s3cret")
    process.wait(PATIENCE)
    os.close(ours)

    assert b"s3cret" not in shown
    assert (code == 0) == ("alice:" in file.read_text())


def read_until(terminal: int, words: bytes) -> bytes:
    """What the terminal shows up to *words*, which may be wrapped in control sequences."""
    shown = b""
    while words not in shown.replace(b"\x1b[0m", b""):
        assert select.select([terminal], [], [], PATIENCE)[0], shown
        shown += os.read(terminal, 1000)
    return shown
