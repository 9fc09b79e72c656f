# Where Redis is and who we are to it, as the supervisor tells its workers: a path or numbers, nothing to look up.
#
# It travels as a list, ("unix", path, user, password, db) or ("tcp", host, port, tls, user, password, db); what is
# missing at the end is the default. `str()` of it is for logs and never shows the password.
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

UNIX: Final = "unix"
TCP: Final = "tcp"


class RedisAddress:
    def __init__(
        self,
        path: str = "",
        host: str = "",
        port: int = 0,
        tls: bool = False,
        user: str = "",
        password: str = "",
        db: int = 0,
    ) -> None:
        """A *path* of a unix socket, or else a *host* (a numeric address) and a *port*."""
        self.path = path
        self.host = host
        self.port = port
        self.tls = tls
        self.user = user
        self.password = password
        self.db = db

    def parts(self) -> list[object]:
        """It as it travels; `from_parts()` makes it again."""
        if self.path:
            return [UNIX, self.path, self.user, self.password, self.db]
        return [TCP, self.host, self.port, self.tls, self.user, self.password, self.db]

    def family(self) -> int:
        """Of the socket that reaches it."""
        if self.path:
            return socket.AF_UNIX
        return socket.AF_INET6 if ip_address(self.host).version == 6 else socket.AF_INET

    def where(self) -> str | tuple[str, int]:
        """What to give to that socket's connect()."""
        return self.path or (self.host, self.port)

    def __str__(self) -> str:
        return self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


def from_parts(parts: Sequence[object]) -> RedisAddress:
    """The address that `parts()` was made of. ValueError: it is none."""
    kinds: list[type] = [str, str, str, int] if parts and parts[0] == UNIX else [str, int, bool, str, str, int]
    given = list(parts[1:])
    least = 1 if parts and parts[0] == UNIX else 2
    if not parts or parts[0] not in (UNIX, TCP) or not least <= len(given) <= len(kinds):
        raise ValueError("no address of Redis")
    if not all(isinstance(value, kind) for value, kind in zip(given, kinds, strict=False)):
        raise ValueError("no address of Redis")
    names = (
        ("path", "user", "password", "db") if parts[0] == UNIX else ("host", "port", "tls", "user", "password", "db")
    )
    address = RedisAddress()
    for name, value in zip(names, given, strict=False):
        setattr(address, name, value)
    return address
