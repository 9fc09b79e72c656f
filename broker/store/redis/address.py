# The address of Redis and the credentials, as the supervisor sends them to its workers: no name needs to be resolved.
#
# It is sent as a list: ("unix", path, user, password, db, era) or
# ("tcp", host, port, tls, user, password, db, name, ca), the last two for TLS only. Fields that are missing at the end
# have their defaults. `str()` is for logs and never shows the password.
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
        name: str = "",
        ca: str = "",
        era: str = "",
    ) -> None:
        """*path*: of a unix socket; without it, *host* (a numeric address) and *port*.

        With *tls*, the certificate of the server has to be for *name*, the host in the URL. *ca* is a PEM file of
        authorities that are trusted beside those of the system.

        *era*: of the data of a private server (supervisor/store_era.py), hexadecimal; "": not known.
        """
        self.path = path
        self.host = host
        self.port = port
        self.tls = tls
        self.user = user
        self.password = password
        self.db = db
        self.name = name
        self.ca = ca
        self.era = era

    def parts(self) -> list[object]:
        """The list in which the address is sent; `from_parts()` is the inverse."""
        if self.path:
            return [UNIX, self.path, self.user, self.password, self.db, *([self.era] if self.era else [])]
        verified: list[object] = [self.name, self.ca] if self.tls else []
        return [TCP, self.host, self.port, self.tls, self.user, self.password, self.db, *verified]

    def differs_in_credentials(self, other: "RedisAddress") -> bool:
        """Whether *other* is the same server, to be used with another user or password."""
        with_ours = RedisAddress(
            other.path, other.host, other.port, other.tls, self.user, self.password, other.db, other.name, other.ca
        )
        return with_ours.parts() == self.parts() != other.parts()

    def family(self) -> int:
        """The address family of the socket."""
        if self.path:
            return socket.AF_UNIX
        return socket.AF_INET6 if ip_address(self.host).version == 6 else socket.AF_INET

    def where(self) -> str | tuple[str, int]:
        """The argument of the socket's connect()."""
        return self.path or (self.host, self.port)

    def __str__(self) -> str:
        return self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


def from_parts(parts: Sequence[object]) -> RedisAddress:
    """The address that `parts()` has made a list of. ValueError: it is no such list."""
    kinds: list[type] = [str, int, bool, str, str, int, str, str]
    names: tuple[str, ...] = ("host", "port", "tls", "user", "password", "db", "name", "ca")
    if parts and parts[0] == UNIX:
        kinds = [str, str, str, int, str]
        names = ("path", "user", "password", "db", "era")
    given = list(parts[1:])
    least = 1 if parts and parts[0] == UNIX else 2
    if not parts or parts[0] not in (UNIX, TCP) or not least <= len(given) <= len(kinds):
        raise ValueError("no address of Redis")
    if not all(isinstance(value, kind) for value, kind in zip(given, kinds, strict=False)):
        raise ValueError("no address of Redis")
    address = RedisAddress()
    for name, value in zip(names, given, strict=False):
        setattr(address, name, value)
    return address
