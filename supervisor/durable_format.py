# The version of the format of what is durable in Redis, under the key PREFIX:format: sessions with their messages.
#
# A build that meets a newer format than it knows does not start: it would take what it cannot read for damaged. Each
# node that shares a server claims the format when it starts, before a worker could write. A newer build raises the
# version; builds that know only the former one are refused from then on, and those that run log it (node_redis.py).
#
# Comparing and writing are one script. With GET and SET, of an older and a newer node that start at once the older one
# could write last, and both would run.
import re
from typing import Any, Final

import redis
from redis.exceptions import ResponseError

from broker.store.redis.keys import DURABLE_FORMAT

VERSION: Final = re.compile(rb"[1-9][0-9]{0,8}")
SHOWN: Final = 40  # characters of a value that is no version
WRONG_TYPE: Final = "WRONGTYPE"  # in Redis' error for a key that holds no string
# Returns what was there. `%d` matches the digits of ASCII.
SCRIPT: Final = """
local found = redis.call('GET', KEYS[1])
local older = found and string.match(found, '^[1-9]%d*$') and tonumber(found) < tonumber(ARGV[1])
if older or not found then
  redis.call('SET', KEYS[1], ARGV[1])
end
return found
"""


def claim_format(server: "redis.Redis", key: bytes, name: str, known: int = DURABLE_FORMAT) -> str:
    """Note under *key* that the data of *server*, for people *name*, has at least the format *known*, of this build.

    Returns one sentence if the data cannot be used, and has changed nothing then; else "". redis.RedisError.
    """
    try:
        found: Any = server.eval(SCRIPT, 1, key, known)  # redis-py allows any type
    except ResponseError as error:
        if WRONG_TYPE not in str(error):
            raise
        return _no_version(key, name, "a value of another type")
    if found is None:
        return ""
    if not VERSION.fullmatch(found):
        return _no_version(key, name, repr(found.decode(errors="replace")[:SHOWN]))
    if int(found) > known:
        return (
            f"The durable sessions in {name} have format {int(found)}, and this version of Weir knows format {known}: "
            "use the version of Weir that wrote them, or set redis.prefix to another one."
        )
    return ""


def _no_version(key: bytes, name: str, found: str) -> str:
    return (
        f"The key {key.decode()} in {name} has {found} and not the version of a format: "
        "find out what else writes there, or set redis.prefix to another one."
    )
