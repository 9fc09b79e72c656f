# From the address of Redis, in the forms that `redis.url` has, to a connection of the analysis.
#
# What is wrong with an address was said before, by the command (supervisor/redis_address.py). A sentinel is asked
# with each new client, so that a job that goes on after a failure finds the master that there is by then.
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

URL: Final = "WEIR_ANALYTICS_REDIS"  # the variable that the job finds its address in: it may hold a password
PATIENCE: Final = 5.0  # seconds, for each answer
SENTINEL_PORT: Final = 26379


def connect(url: str) -> "redis.Redis":
    """A client that connects when it is first used. redis.RedisError: no sentinel knows the master."""
    options: dict[str, Any] = {
        "socket_timeout": PATIENCE,
        "socket_connect_timeout": PATIENCE,
        "retry": Retry(NoBackoff(), 0),  # who asks knows better when to ask again
    }
    if not url.startswith("redis+sentinel:"):
        client: redis.Redis = redis.Redis.from_url(url, **options)
        return client
    parts = urlsplit(url)
    hosts = []
    for one in parts.netloc.rpartition("@")[2].split(","):
        host = urlsplit(f"//{one}")
        hosts.append((host.hostname, host.port or SENTINEL_PORT))
    service, _, db = parts.path[1:].partition("/")
    ask: Any = Sentinel  # says nothing of its types
    sentinels = ask(hosts, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)
    host, port = sentinels.discover_master(unquote(service))
    user, password = unquote(parts.username or "") or None, unquote(parts.password or "") or None
    return redis.Redis(host=host, port=port, username=user, password=password, db=int(db or 0), **options)
