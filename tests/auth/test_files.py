# The password and ACL files: read together, and refused with the file and the line.
from pathlib import Path

import pytest

from broker.auth.files import AccessFileError, AccessFiles
from broker.auth.passwords import hash_password
from broker.config.schema import Access

GOOD = f"alice:{hash_password(b'right', b'twelve bytes', 1)}\n"


def test_files_that_are_not_configured_are_none() -> None:
    """A broker without files would refuse to start, or ask for passwords that nobody has."""
    files = AccessFiles(Access())

    assert (None, None) == (files.passwords, files.acl)


def test_both_files_are_read(tmp_path: Path) -> None:
    """One of the two would not be in force."""
    (tmp_path / "passwords").write_text(GOOD)
    (tmp_path / "acl").write_text("topic read t/#\n")
    files = AccessFiles(Access(password_file=str(tmp_path / "passwords"), acl_file=str(tmp_path / "acl")))

    assert files.passwords is not None and files.acl is not None
    assert 1 == len(files.passwords)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "Cannot read the password file {}: No such file or directory."),
        (b"\xff\xfe", "Cannot read the password file {}: it is not UTF-8."),
        (GOOD.encode() + b"bob:plain\n", "The password file {}, line 2: not a password hash that Weir knows"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, data: bytes | None, sentence: str) -> None:
    """An operator would have to look for the file and the line."""
    file = tmp_path / "passwords"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(AccessFileError) as refused:
        AccessFiles(Access(password_file=str(file)))

    assert sentence.format(file) in str(refused.value)


def test_a_wrong_line_of_the_acl_file_is_named(tmp_path: Path) -> None:
    """A rule that was meant to deny would be left out."""
    file = tmp_path / "acl"
    file.write_text("topic read a\ntopic reed b\n")
    with pytest.raises(AccessFileError, match=f"The ACL file {file}, line 2: unknown access 'reed'"):
        AccessFiles(Access(acl_file=str(file)))
