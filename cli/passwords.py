# What `weir passwd` does with a password file: it changes one line and keeps all others, comments included.
#
# The new file takes the place of the old one in one step, as a broker may read it at any moment, and has the same
# owner: root may change the file of the user that the broker runs as. Nobody else may read it.
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
    """What was asked for cannot be done; nothing was changed. Its text is one sentence for the user."""


def set_password(file: Path, user: str, password: bytes, iterations: int, create: bool) -> bool:
    """Give *user* that *password* in *file*; True if it had none before."""
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
    """The text of *file*, whose lines are all right; with *create*, it need not be there."""
    try:
        text = file.read_bytes().decode()
        parse_passwords(text, b"")
    except FileNotFoundError:
        if create:
            return ""
        raise PasswordFileError(f"there is no file {file}: `--create` makes it.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PasswordFileError(f"cannot read {file}: {why}.") from None
    except BadLine as error:
        raise PasswordFileError(f"{file}, line {error.number}: {error}.") from None
    return text


def _write(file: Path, text: str) -> None:
    try:
        _replace(file.resolve(), text.encode())  # a link stays one
    except OSError as error:
        raise PasswordFileError(f"cannot write {file}: {error.strerror}.") from None


def _replace(file: Path, data: bytes) -> None:
    """Put a file with *data* in the place of *file*: afterwards the old or the new one is there, never a part."""
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
