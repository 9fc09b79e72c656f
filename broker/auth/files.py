# The files that say which clients may connect and what they may do, read at the start and again at SIGHUP.
import os
from pathlib import Path

from broker.auth.acl import Acl, parse_acl
from broker.auth.lines import BadLine
from broker.auth.passwords import Passwords, parse_passwords
from broker.config.schema import Access

KEY_BYTES = 32


class AccessFileError(Exception):
    """A file cannot be used. The text is one sentence: which file, which line, and what would be right."""


class AccessFiles:
    """The contents of the password and ACL files; None for a file that is not configured."""

    def __init__(self, access: Access) -> None:
        """Read the files that *access* names. AccessFileError."""
        self.passwords: Passwords | None = None
        self.acl: Acl | None = None
        if access.password_file:
            self.passwords = read_passwords(Path(access.password_file))
        if access.acl_file:
            self.acl = read_acl(Path(access.acl_file))


def read_passwords(file: Path) -> Passwords:
    try:
        return parse_passwords(_text("password", file), os.urandom(KEY_BYTES))
    except BadLine as error:
        raise AccessFileError(f"The password file {file}, line {error.number}: {error}.") from None


def read_acl(file: Path) -> Acl:
    try:
        return parse_acl(_text("ACL", file))
    except BadLine as error:
        raise AccessFileError(f"The ACL file {file}, line {error.number}: {error}.") from None


def _text(what: str, file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise AccessFileError(f"Cannot read the {what} file {file}: {why}.") from None
