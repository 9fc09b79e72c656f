# The file of a backup: what was written is read, and nothing else is.
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from supervisor.backup.backup_file import (
    MAGIC,
    PACKS,
    PART,
    RETAINED,
    SESSION,
    VERSION,
    BackupReader,
    BackupUnusable,
    BackupWriter,
    Counts,
    Head,
)

HEAD = Head("node", "0.1.0", 1, 1_800_000_000.0, False)


def written(path: Path, head: Head = HEAD, packs: tuple[bytes, ...] = (b"pack",)) -> Path:
    with BackupWriter(path, head) as backup:
        backup.session(b"one", [b"", b"head", b"a/#", b"\1"], [3, 4], list(packs))
        backup.session(b"\xff", [b"", b"head"], [], [])
        backup.retained([b"topic", b"value"])
        backup.finish()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """A session would come back as another one, or without its messages."""
    with BackupReader(written(tmp_path / "file")) as backup:
        assert HEAD == backup.head
        assert Counts(2, 1, 1) == backup.check()
        assert [
            (SESSION, [b"one", [b"", b"head", b"a/#", b"\1"], [3, 4]]),
            (PACKS, [b"pack"]),
            (SESSION, [b"\xff", [b"", b"head"], []]),
            (RETAINED, [b"topic", b"value"]),
        ] == list(backup.frames())


def test_a_long_queue_is_read_in_parts(tmp_path: Path) -> None:
    """A queue of gigabytes would have to fit into the memory of a restore."""
    packs = tuple(bytes((number,)) * (PART // 4) for number in range(10))

    with BackupReader(written(tmp_path / "file", packs=packs)) as backup:
        read = [content for kind, content in backup.frames() if kind == PACKS]

    assert list(packs) == [pack for part in read for pack in part]
    assert [4, 4, 2] == [len(part) for part in read]


def damaged(data: bytes) -> list[bytes]:
    """*data*, cut anywhere; with any byte changed; with something behind it."""
    cut = [data[:length] for length in range(len(data))]
    changed = [data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :] for at in range(len(data))]
    return [*cut, *changed, data + b"\0"]


def test_what_is_damaged_or_cut_is_refused(tmp_path: Path) -> None:
    """A node would go on with a part of its sessions, or with messages that nobody has sent."""
    data = written(tmp_path / "file").read_bytes()
    file = tmp_path / "damaged"

    for each in damaged(data):
        file.write_bytes(each)
        with pytest.raises(BackupUnusable) as refusal, BackupReader(file) as backup:
            backup.check()
        assert str(file) in str(refusal.value)


def test_a_frame_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    """A damaged length would take all the memory of the machine."""
    file = tmp_path / "file"
    file.write_bytes(MAGIC + VERSION.to_bytes(2, "big") + b"\xff\xff\xff\xff" + bytes(100))

    with pytest.raises(BackupUnusable, match="damaged"):
        BackupReader(file)


def newer(path: Path) -> None:
    path.write_bytes(MAGIC + (VERSION + 1).to_bytes(2, "big") + b"nobody knows")


def pipe(path: Path) -> None:
    os.mkfifo(path)


WRONG: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: path.write_bytes(b""), "is no backup of Weir."),
    (lambda path: path.write_bytes(MAGIC), "is no backup of Weir."),
    (lambda path: path.write_text("something else"), "is no backup of Weir."),
    (newer, "use the version of Weir that wrote it."),
    (lambda path: path.write_bytes(written(path.with_name("whole")).read_bytes()[:-1]), "is damaged, or not whole"),
    (lambda path: path.mkdir(), "is no file."),
    (pipe, "is no file."),
    (lambda path: None, "cannot be read: No such file or directory."),
]


@pytest.mark.parametrize(("make", "sentence"), WRONG)
def test_what_is_no_backup_is_refused_before_anything_is_started(
    tmp_path: Path, make: Callable[[Path], object], sentence: str
) -> None:
    """A slip would cost an operator a half restored node, or a traceback instead of a sentence."""
    file, node = tmp_path / "file", tmp_path / "node"
    make(file)

    done = CliRunner().invoke(
        app, ["restore", str(file), "--yes", "--folder", str(node), "--set", "store.durability=process"]
    )

    assert (2, "", 1) == (done.exit_code, done.stdout, len(done.stderr.splitlines()))
    assert sentence in done.stderr
    assert not node.exists()


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_node_that_stores_nothing_has_no_backup(tmp_path: Path, command: str) -> None:
    """An operator would trust in an empty backup, or restore one that the node never reads."""
    file, node = tmp_path / "file", tmp_path / "node"
    if command == "restore":
        written(file)
    else:
        node.mkdir()
        (node / "node").write_text("weir\n")

    done = CliRunner().invoke(app, [command, str(file), "--folder", str(node), *(["--yes"] * (command == "restore"))])

    assert (2, "") == (done.exit_code, done.stdout)
    assert 'store.durability is "memory"' in done.stderr
    assert (command == "restore") == file.exists()


def test_a_node_that_is_not_there_is_exit_code_1(tmp_path: Path) -> None:
    """A slip in the name of a node would make a backup of nothing."""
    node = tmp_path / "node"

    done = CliRunner().invoke(app, ["backup", str(tmp_path / "file"), "--folder", str(node)])

    assert (1, f"weir: There is no node weir in {node}.") == (done.exit_code, done.stderr.strip())
    assert [] == list(tmp_path.iterdir())


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    """A second backup would destroy the first one, although it may fail itself."""
    file = written(tmp_path / "file")
    before = file.read_bytes()

    with pytest.raises(BackupUnusable, match="exists already"):
        BackupWriter(file, HEAD)

    assert before == file.read_bytes()


@pytest.mark.parametrize("size", (2000, 100_000))  # bytes that are written at the end, or at once
def test_a_backup_that_fails_leaves_no_file(tmp_path: Path, size: int) -> None:
    """What is not whole would be taken for a backup, or fill the disk."""
    file = tmp_path / "file"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(BackupUnusable, match="cannot be written: File too large"):
            written(file, packs=(bytes(size),))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with pytest.raises(KeyboardInterrupt), BackupWriter(file, HEAD):
        raise KeyboardInterrupt
    assert [] == list(tmp_path.iterdir())
