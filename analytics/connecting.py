# Redis clients of the analysis, from an address in one of the forms of `redis.url`.
#
# The command has validated the address before (supervisor/redis_address.py). Each new client asks the sentinels for the
# current primary, so that a job finds the new primary when it resumes after a failover, and reads the passwords from
# their files again, so that they can be changed while a job runs. The names of the files are in the query of the
# address, which is all that reaches the processes of Spark. A machine without the password file uses the password that
# the file had at the start.
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

# The environment variable with the address: an address may contain a password, and command lines are public.
URL: Final = "WEIR_ANALYTICS_REDIS"
TIMEOUT: Final = 5.0  # seconds, for connecting and for each reply
SENTINEL_PORT: Final = 26379
AUTHORITIES: Final = "ssl_ca_certs"  # as redis-py calls it
PASSWORD_FILE: Final = "password_file"
SENTINEL_PASSWORD_FILE: Final = "sentinel_password_file"


def with_files(url: str, ca: str, password_file: str, sentinel_password_file: str) -> str:
    """Return *url* with these files, as `connect()` wants it; "": there is no such file."""
    files = ((AUTHORITIES, ca), (PASSWORD_FILE, password_file), (SENTINEL_PASSWORD_FILE, sentinel_password_file))
    query = urlencode([(name, os.path.abspath(file)) for name, file in files if file])
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url


def connect(url: str) -> "redis.Redis":
    """Return a client that connects at its first use. Raises redis.RedisError if no sentinel knows the primary."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    password = _password_in(query.pop(PASSWORD_FILE, "")) or unquote(parts.password or "")
    sentinel_password = _password_in(query.pop(SENTINEL_PASSWORD_FILE, ""))
    login: dict[str, Any] = {"username": unquote(parts.username or "") or None, "password": password or None}
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT,
        "socket_connect_timeout": TIMEOUT,
        "retry": Retry(NoBackoff(), 0),  # the callers retry, each at its own pace
    }
    if parts.scheme in ("rediss", "rediss+sentinel"):
        options |= {"ssl_check_hostname": True}
    listed = parts.netloc.rpartition("@")[2]
    if not parts.scheme.endswith("+sentinel"):
        bare = f"{parts.scheme}://{listed}{parts.path}{'?' if query else ''}{urlencode(query)}"
        client: redis.Redis = redis.Redis.from_url(bare, **login, **options)
        return client
    hosts = []
    for one in listed.split(","):
        host = urlsplit(f"//{one}")
        hosts.append((host.hostname, host.port or SENTINEL_PORT))
    service, _, db = parts.path[1:].partition("/")
    untyped: Any = Sentinel  # the class has no type annotations
    if parts.scheme == "rediss+sentinel":
        options |= {"ssl": True, "ssl_ca_certs": query.get(AUTHORITIES)}
    sentinel = options | {"password": sentinel_password or None}
    host, port = untyped(hosts, sentinel_kwargs=sentinel).discover_master(unquote(service))
    return redis.Redis(host=host, port=port, db=int(db or 0), **login, **options)


def _password_in(file: str) -> str:
    """Return the password in *file*; "" if there is none now, or not on this machine."""
    try:
        return Path(file).read_text().strip("\r\n") if file else ""
    except (OSError, UnicodeDecodeError):
        return ""
