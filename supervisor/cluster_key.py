# The key of the cluster, with which workers seal what they leave in Redis (broker/cluster/seal.py).
#
# Nodes that share a Redis share a key file, which the operator places there (`redis.key_file`). A private server needs
# none: the node makes a key in its own folder, which stays there like the wills in the data of the server.
import os
import secrets
from pathlib import Path
from typing import Final

from supervisor.redis_server import RedisUnusable

SIZE: Final = 32  # bytes
LEAST: Final = 32  # characters in the file: 16 bytes in hexadecimal
MOST: Final = 4096


def cluster_key(file: str, url: str, folder: Path) -> bytes:
    """The key in *file*, or else that of the private server in *folder*; b"" if a shared server at *url* has none.

    RedisUnusable: the file cannot be used.
    """
    if not file and url:
        return b""
    path = Path(file) if file else folder / "cluster.key"
    try:
        if not file and not path.exists():
            _make(path)
        found = path.read_bytes().strip()
    except OSError as error:
        raise RedisUnusable(f"redis.key_file: cannot use {path}: {error.strerror}.") from None
    if not LEAST <= len(found) <= MOST:
        raise RedisUnusable(
            f"redis.key_file: {path} has {len(found)} characters: it must have {LEAST} to {MOST}, such as those that "
            "`openssl rand -hex 32` prints."
        )
    return found


def _make(path: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)  # of a start that was killed
    descriptor = os.open(temporary, flags, 0o600)
    with open(descriptor, "w") as new:
        new.write(f"{secrets.token_hex(SIZE)}\n")
        new.flush()
        os.fsync(descriptor)
    os.replace(temporary, path)
