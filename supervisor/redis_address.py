# From `--redis URL` to a numeric address for the workers, with a check that the server there can be used.
#
# This code waits for the network. So it is called before the first worker starts, and later in a thread: a host name
# may stand for another address by then, and a sentinel may name another primary. Workers get numbers and look up no
# names; with TLS they also get the name, as the certificate is for it. With rediss+sentinel:// sentinels and primaries
# are both reached by TLS, and the certificate of a primary has to be for the host that the sentinels tell.
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

import redis
from redis import exceptions as refusals
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from broker.config.schema import Redis
from broker.config.sources import without_password
from broker.store.redis.address import RedisAddress
from supervisor.redis_server import OLDEST, RedisUnusable

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
SENTINELS: Final = ("redis+sentinel", "rediss+sentinel")  # schemes
TIMEOUT: Final = 5.0  # seconds for each answer
SENTINEL_PASSWORD: Final = "a sentinel asks for a password, or refuses the one in redis.sentinel_password_file"
NOT_LET_IN: Final = "does not accept the user name or the password, or the URL has none"
FORMS: Final = (
    "redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss://[USER:PASSWORD@]HOST[:PORT][/DB] (TLS), "
    "unix://[USER:PASSWORD@]/PATH[?db=DB] or "
    "redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/SERVICE[/DB] (rediss+sentinel://: TLS)"
)


@dataclass(frozen=True)
class FoundRedis:
    address: RedisAddress
    version: tuple[int, ...]
    remarks: tuple[str, ...]  # settings of the server that do not suit Weir
    unsuitable: str = ""  # what `examine` of `find_redis()` returned


Info = dict[str, Any]  # the answer of a server to INFO
Examine = Callable[["redis.Redis", Info], str]


@dataclass(frozen=True)
class _Url:
    scheme: str
    shown: str  # without the password
    user: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    path: str = ""
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""


def check_settings(settings: Redis) -> None:
    """RedisUnusable: the URL is malformed, or one of the files cannot be used. Nothing is looked up."""
    _parse(settings.url)
    _parse(url_with_password(settings.url, settings.password_file))
    _sentinel_password(settings)
    _check_ca(settings.ca)


def url_with_password(url: str, file: str) -> str:
    """*url* with the password that *file* has now; "": *url* as it is. RedisUnusable."""
    if not file:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return url  # `_parse()` says what is wrong with it
    user, _, hosts = parts.netloc.rpartition("@")
    if ":" in user:
        raise RedisUnusable(f"{without_password(url)} has a password, and so has redis.password_file: leave out one.")
    password = quote(_password_in(file, "redis.password_file"), safe="")
    return parts._replace(netloc=f"{user}:{password}@{hosts}").geturl()


def _sentinel_password(settings: Redis) -> str:
    """The password that the sentinels have now; "": none. RedisUnusable."""
    file = settings.sentinel_password_file
    return _password_in(file, "redis.sentinel_password_file") if file else ""


def _password_in(file: str, setting: str) -> str:
    """RedisUnusable: *file*, which *setting* names, has none."""
    try:
        password = Path(file).read_text().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = _detail(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise RedisUnusable(f"{setting}: cannot read {file}: {why}.") from None
    if not password:
        raise RedisUnusable(f"{setting}: {file} is empty.")
    return password


def _suits(server: "redis.Redis", told: Info) -> str:
    return ""


def find_configured(settings: Redis, examine: Examine = _suits) -> FoundRedis:
    """`find_redis()` with the passwords that the files of *settings* have now. RedisUnusable."""
    url = url_with_password(settings.url, settings.password_file)
    return find_redis(url, settings.ca, examine, _sentinel_password(settings))


def find_redis(url: str, ca: str = "", examine: Examine = _suits, sentinel_password: str = "") -> FoundRedis:
    """Connect to the server that *url* names, and return its address and version. RedisUnusable.

    *ca*: a PEM file of authorities that are trusted beside those of the system. *examine* is called with the server and
    its answer to INFO, unless it cannot be used anyway; it returns one sentence on why the server does not suit, or "".
    *sentinel_password*: of the sentinels that *url* names, if they have one.
    """
    wanted = _parse(url)
    tls = wanted.scheme in ("rediss", "rediss+sentinel")
    if tls:
        _check_ca(ca)
    with explained(wanted.shown):
        if wanted.scheme in SENTINELS:
            host, port = _ask_sentinels(wanted, _tls_options(ca) if tls else {}, sentinel_password)
        elif wanted.scheme == "unix":
            host, port = "", 0
        else:
            host, port = wanted.hosts[0]
        address = RedisAddress(
            path=wanted.path,
            host=_number_of(host, port) if host else "",
            port=port,
            user=wanted.user,
            password=wanted.password,
            db=wanted.db,
            tls=tls,
            name=host if tls else "",
            ca=os.path.abspath(ca) if tls and ca else "",
        )
        return _look_at(address, wanted.shown, examine)


def _parse(url: str) -> _Url:
    try:
        parts = urlsplit(url)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
    except ValueError:
        raise RedisUnusable(f"The address of Redis is not a URL: it must be {FORMS}.") from None
    shown = without_password(url)
    try:
        if parts.scheme == "unix":
            return _Url("unix", shown, user, password, _db(_query_db(parts.query)), path=_socket_path(parts))
        segments = [unquote(part) for part in parts.path.split("/")[1:]]
        if parts.scheme == "redis" or (parts.scheme == "rediss" and not parts.query):
            db = _db(segments[0] if segments else "")
            return _Url(parts.scheme, shown, user, password, db, hosts=(*_hosts(parts, PORT, most=1),))
        if parts.scheme in SENTINELS and not parts.query and segments and segments[0]:
            hosts = (*_hosts(parts, SENTINEL_PORT, most=100),)
            db = _db(segments[1] if len(segments) > 1 else "")
            return _Url(parts.scheme, shown, user, password, db, hosts=hosts, service=segments[0])
    except ValueError:
        pass
    raise RedisUnusable(f"{shown} is not an address of Redis: it must be {FORMS}.")


def _check_ca(ca: str) -> None:
    if ca:
        try:
            ssl.create_default_context(cafile=ca)
        except OSError as error:  # ssl.SSLError is one
            why = "is not a PEM file of certificates" if isinstance(error, ssl.SSLError) else _detail(error)
            raise RedisUnusable(f"redis.ca: {ca}: {why}.") from None


def _db(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError("no number")
    return int(text or "0")


def _query_db(query: str) -> str:
    if query and not query.startswith("db="):
        raise ValueError("an option that there is not")
    return query.removeprefix("db=")


def _socket_path(parts: SplitResult) -> str:
    if not parts.path or parts.netloc.rpartition("@")[2]:
        raise ValueError("not absolute")
    return unquote(parts.path)


def _hosts(parts: SplitResult, port: int, most: int) -> Iterator[tuple[str, int]]:
    listed = parts.netloc.rpartition("@")[2].split(",")
    if len(listed) > most:
        raise ValueError("one host")
    for one in listed:
        host = urlsplit(f"//{one}")
        if not host.hostname:
            raise ValueError("no host")
        yield host.hostname, host.port or port


def _number_of(host: str, port: int) -> str:
    """The first numeric address of *host* that accepts a connection. OSError: none does."""
    candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if len(candidates) == 1:
        return str(candidates[0][4][0])
    with socket.create_connection((host, port), timeout=TIMEOUT) as answered:
        return str(answered.getpeername()[0])


def _ask_sentinels(wanted: _Url, tls: dict[str, Any], password: str) -> tuple[str, int]:
    make: Any = Sentinel  # it has no type annotations
    options = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT, "password": password or None, **tls}
    try:
        host, port = make(list(wanted.hosts), sentinel_kwargs=options).discover_master(wanted.service)
    except MasterNotFoundError as error:
        if "AuthenticationError" in str(error):  # it names what each sentinel has answered
            raise RedisUnusable(f"{wanted.shown}: {SENTINEL_PASSWORD}.") from None
        raise RedisUnusable(
            f"{wanted.shown}: no sentinel that can be reached knows a primary named {wanted.service!r}."
        ) from None
    return str(host), int(port)


def _tls_options(ca: str) -> dict[str, Any]:
    return {"ssl": True, "ssl_ca_certs": ca or None, "ssl_check_hostname": True}


def open_client(address: RedisAddress) -> "redis.Redis":
    """A client of the server at *address*, which connects with its first command."""
    options = _tls_options(address.ca) if address.tls else {}
    return redis.Redis(
        host=address.name or address.host,  # redis-py checks the certificate for the host that it connects to
        port=address.port,
        unix_socket_path=address.path or None,
        username=address.user or None,
        password=address.password or None,
        db=address.db,
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        **options,
    )


def _look_at(address: RedisAddress, shown: str, examine: Examine) -> FoundRedis:
    with open_client(address) as server:
        server.ping()
        told: Info = server.info()
        server.eval("return 1", 0)
        version = _usable_version(told, shown)
        return FoundRedis(address, version, (*_remarks(told),), examine(server, told))


def _usable_version(told: Info, shown: str) -> tuple[int, ...]:
    """The version of a server that Weir can use. RedisUnusable."""
    kind = "valkey" if "valkey_version" in told else "redis"  # Valkey also names the Redis that it is compatible with
    number = str(told[f"{kind}_version"])
    version = tuple(int(part) for part in number.split(".")[:3])
    name = f"{kind.capitalize()} {number}"
    if version < OLDEST:
        raise RedisUnusable(f"{shown} is {name}: Weir needs {'.'.join(map(str, OLDEST))} or newer.")
    if told.get("role") == "slave":
        raise RedisUnusable(f"{shown} is a replica, which refuses writes: name its primary, or a sentinel.")
    if told.get("redis_mode") == "cluster" or told.get("cluster_enabled"):
        raise RedisUnusable(
            f"{shown} is a node of a Redis Cluster, which Weir does not support yet: name a single server."
        )
    return version


def _remarks(told: Info) -> Iterator[str]:
    policy = told.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and told.get("maxmemory"):
        yield f"maxmemory-policy is {policy}, so Redis may evict sessions; set it to noeviction"
    if not told.get("aof_enabled"):
        yield "the append-only file is off, so sessions are lost when Redis ends; set appendonly to yes"


@contextmanager
def explained(shown: str) -> Iterator[None]:
    """Turn exceptions of redis-py into RedisUnusable, with a sentence about the server *shown*."""
    try:
        yield
    except refusals.NoPermissionError as error:
        raise RedisUnusable(f"{shown} denies its user a command that Weir needs: {_detail(error)}.") from None
    except (refusals.AuthenticationError, refusals.AuthorizationError):
        raise RedisUnusable(f"{shown} {NOT_LET_IN}.") from None
    except refusals.BusyLoadingError:
        raise RedisUnusable(f"{shown} is still loading its data: start Weir afterwards.") from None
    except (refusals.TimeoutError, TimeoutError):
        raise RedisUnusable(f"{shown} does not answer within {TIMEOUT:g} s.") from None
    except refusals.ResponseError as error:
        text = str(error)
        if text.startswith(("NOAUTH", "WRONGPASS")) or "without any password configured" in text:
            raise RedisUnusable(f"{shown} {NOT_LET_IN}.") from None
        raise RedisUnusable(f"{shown} answered with an error: {text}.") from None
    except socket.gaierror as error:
        raise RedisUnusable(f"{shown}: the host name cannot be resolved ({error.strerror}).") from None
    except (refusals.ConnectionError, OSError) as error:
        if why := _tls_failure(error) if shown.startswith("rediss") else "":
            raise RedisUnusable(f"{shown}: {why}.") from None
        raise RedisUnusable(f"{shown} cannot be reached: {_detail(error)}.") from None
    except refusals.RedisError as error:
        raise RedisUnusable(f"{shown} cannot be used: {_detail(error)}.") from None


def _tls_failure(error: BaseException) -> str:
    """What is wrong with TLS, if *error* of redis-py comes from that; "" if it does not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate of the server is refused: {cause.verify_message.rstrip('.')}"
        if isinstance(cause, (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError)):
            return "the server closed the connection; it may want a certificate of its clients (tls-auth-clients)"
        if isinstance(cause, ssl.SSLError):
            return f"TLS with the server fails: {str(cause.reason or cause).lower().replace('_', ' ')}"
        cause = cause.__cause__ or cause.__context__
    return ""


def _detail(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return str(text).rstrip(".")
