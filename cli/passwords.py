# `weir passwd`: changes one line of a password file and keeps all others, including comments.
#
# The new file replaces the old one atomically, as a broker may read it at any moment. It keeps the owner, so that root
# can edit the file of the broker's user, and is readable by its owner only.
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

from broker.auth.lines import BadLine
from broker.auth.passwords import (
    SALT_BYTES,
    check_name,
    hash_password,
    name_of,
    parse_passwords,
    with_user,
    without_user,
)

ONLY_ITS_OWNER: Final = 0o600


class PasswordFileError(Exception):
    """The request cannot be carried out and nothing was changed. The text is one sentence for the user."""


def set_password(file: Path, user: str, password: bytes, iterations: int, create: bool) -> bool:
    """Set the password of *user* in *file*. True if the user is new."""
    check_user(user)
    if not password:
        raise PasswordFileError("the password is empty: it must have at least one character.")
    text = read(file, create)
    known = any(name_of(line) == user for line in text.split("\n"))
    hashed = hash_password(password, secrets.token_bytes(SALT_BYTES), iterations)
    _write(file, with_user(text, user, hashed))
    return not known


def delete_user(file: Path, user: str) -> None:
    text = read(file, False)
    try:
        left = without_user(text, user)
    except KeyError:
        raise PasswordFileError(f"there is no user {user!r} in {file}.") from None
    _write(file, left)


def check_user(user: str) -> None:
    try:
        check_name(user)
    except ValueError as error:
        raise PasswordFileError(f"{error}.") from None


def read(file: Path, create: bool) -> str:
    """The text of *file*, after checking its lines. With *create* a missing file reads as empty."""
    try:
        text = file.read_bytes().decode()
        parse_passwords(text, b"")
    except FileNotFoundError:
        if create:
            return ""
        raise PasswordFileError(f"there is no file {file}; `--create` creates it.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PasswordFileError(f"cannot read {file}: {why}.") from None
    except BadLine as error:
        raise PasswordFileError(f"{file}, line {error.number}: {error}.") from None
    return text


def _write(file: Path, text: str) -> None:
    try:
        _replace(file.resolve(), text.encode())  # a symbolic link stays a link
    except OSError as error:
        raise PasswordFileError(f"cannot write {file}: {error.strerror}.") from None


def _replace(file: Path, data: bytes) -> None:
    """Replace *file* atomically by a file with the content *data*."""
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(descriptor, "wb") as new:
            if file.exists():
                owner = file.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            os.fchmod(descriptor, ONLY_ITS_OWNER)
            new.write(data)
            new.flush()
            os.fsync(descriptor)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
