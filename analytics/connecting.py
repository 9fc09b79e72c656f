# Redis clients of the analysis, from an address in one of the forms of `redis.url`.
#
# The command has validated the address before (supervisor/redis_address.py). Each new client asks the sentinels for the
# current master, so that a job finds the new master when it resumes after a failover.
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

# The environment variable with the address: an address may contain a password, and command lines are public.
URL: Final = "WEIR_ANALYTICS_REDIS"
TIMEOUT: Final = 5.0  # seconds, for connecting and for each reply
SENTINEL_PORT: Final = 26379


def connect(url: str) -> "redis.Redis":
    """Return a client that connects at its first use. Raises redis.RedisError if no sentinel knows the master."""
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT,
        "socket_connect_timeout": TIMEOUT,
        "retry": Retry(NoBackoff(), 0),  # the callers retry, each at its own pace
    }
    if url.startswith("rediss:"):
        options["ssl_check_hostname"] = True
    if not url.partition(":")[0].endswith("+sentinel"):
        client: redis.Redis = redis.Redis.from_url(url, **options)
        return client
    parts = urlsplit(url)
    hosts = []
    for one in parts.netloc.rpartition("@")[2].split(","):
        host = urlsplit(f"//{one}")
        hosts.append((host.hostname, host.port or SENTINEL_PORT))
    service, _, db = parts.path[1:].partition("/")
    untyped: Any = Sentinel  # the class has no type annotations
    if parts.scheme == "rediss+sentinel":
        authorities = parse_qs(parts.query).get("ssl_ca_certs")
        options |= {"ssl": True, "ssl_ca_certs": authorities[0] if authorities else None, "ssl_check_hostname": True}
    host, port = untyped(hosts, sentinel_kwargs=options).discover_master(unquote(service))
    user, password = unquote(parts.username or "") or None, unquote(parts.password or "") or None
    return redis.Redis(host=host, port=port, username=user, password=password, db=int(db or 0), **options)
