# What a Redis server promises for a write that it has answered, by its settings.
#
#   memory      nothing: it has no append-only file, or answers before a write is in it, or evicts keys when it is full
#   process     the write is in the append-only file: it survives kill -9 of the server, and perhaps no loss of power
#   power       the write is on the disk and survives loss of power
#   replicated  as process, and it has enough replicas that workers can wait for: `store.replicas` of them
#
# A server with `appendfsync always` and replicas gives both "power" and "replicated". One that keeps nothing itself
# does not give "replicated": when it is started again without data, its replicas delete theirs.
#
# `appendfsync everysec` promises nothing: while its sync runs, the server keeps writes in memory for up to 2 s and
# answers them all the same. `no-appendfsync-on-rewrite` takes from `always` what it promises, for minutes.
# Managed services forbid CONFIG GET, and INFO does not tell appendfsync. What a server does not tell it does not
# promise: a loss of power would find out a wrong guess.
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis

from broker.config.schema import MEMORY, POWER, PROCESS, REPLICATED

ALWAYS: Final = "always"
EVERY_SECOND: Final = "everysec"
NO_EVICTION: Final = "noeviction"
EVICTION: Final = "maxmemory-policy"
LOADS_TORN: Final = "aof-load-truncated"
ASKED: Final = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", LOADS_TORN, "maxmemory", EVICTION, "save")
# What a class needs: the values that will do, the first of which is recommended.
NEEDED: Final[dict[str, dict[str, Sequence[str]]]] = {
    MEMORY: {},
    PROCESS: {"appendonly": ["yes"], "appendfsync": [ALWAYS, "no"]},
    POWER: {"appendonly": ["yes"], "appendfsync": [ALWAYS], "no-appendfsync-on-rewrite": ["no"]},
    REPLICATED: {"appendonly": ["yes"], "appendfsync": [ALWAYS, "no"]},
}
REPLICAS: Final = "replicas"  # among the settings: how many replicas confirm writes now; missing if none does
ONLINE: Final = "online"  # the state of a replica that has the data and is sent each write
MOST_LAG: Final = 10  # seconds since a replica has confirmed anything, as min-replicas-max-lag; it does each second

Settings = Mapping[str, str]  # by name; those that the server does not tell are missing


def read_settings(server: "redis.Redis", told: Mapping[str, Any]) -> Settings:
    """The settings ASKED of *server*, as far as it tells them. *told*: its answer to INFO.

    redis.RedisError: the connection has failed.
    """
    # One request for each: before 7.0 CONFIG GET takes one name, and a service may hide some and tell others.
    requests = server.pipeline(transaction=False)
    for name in ASKED:
        requests.config_get(name)
    settings = from_info(told)
    for name, answer in zip(ASKED, requests.execute(raise_on_error=False), strict=True):
        if isinstance(answer, dict) and answer.get(name) is not None:  # otherwise it is an error, or empty
            settings[name] = str(answer[name])
    return settings


def from_info(told: Mapping[str, Any]) -> dict[str, str]:
    """What a server *told* with INFO, as far as it did, by the names of settings."""
    settings = {}
    if "aof_enabled" in told:
        settings["appendonly"] = "yes" if told["aof_enabled"] else "no"
    for name, field in (("maxmemory", "maxmemory"), (EVICTION, "maxmemory_policy")):
        if field in told:
            settings[name] = str(told[field])
    count = told.get("connected_slaves", 0)
    replicas = [told.get(f"slave{number}") for number in range(count if isinstance(count, int) else 0)]
    confirming = sum(isinstance(one, dict) and _confirms(one) for one in replicas)
    if confirming:
        settings[REPLICAS] = str(confirming)
    return settings


def _confirms(replica: Mapping[str, Any]) -> bool:
    """Whether *replica*, as INFO tells it, has the data and confirms what it is sent."""
    lag = replica.get("lag")
    return replica.get("state") == ONLINE and isinstance(lag, int) and lag <= MOST_LAG


def described(settings: Settings) -> str:
    """The settings for a log line."""
    told = [f"{name} {settings.get(name, 'not told') or 'empty'}" for name in ASKED]
    if REPLICAS in settings:
        told.append(f"{REPLICAS} {settings[REPLICAS]}")
    return ", ".join(told)


def durability_of(settings: Settings) -> str:
    """The class that a server with *settings* gives without its replicas."""
    return next(durability for durability in (POWER, PROCESS, MEMORY) if not any(_lacking(settings, durability)))


def shortfall(settings: Settings, durability: str, server: str, replicas: int = 1) -> str:
    """One sentence on why *server*, which has *settings*, does not give *durability*; "": it does.

    *replicas*: how many replicas have to have each write, for "replicated".
    """
    wrong, untold = _lacking(settings, durability)
    missing = durability == REPLICATED and int(settings.get(REPLICAS, "0")) < replicas
    if not wrong and not untold and not missing:
        return ""
    given = durability_of(settings)
    reasons, remedies = [], []
    if wrong:
        reasons.append(f'gives "{given}"')
        remedies.append(f"set {_listed([f'{name} to {value}' for name, value in wrong.items()])} there")
    if untold:
        reasons.append(f"does not tell its {_listed(untold)}")
        remedies.append("allow its user the command CONFIG GET")
    if missing:
        have = settings.get(REPLICAS, "0")
        one = "replica that confirms what it is sent"
        reasons.append(f"has {have} {one if have == '1' else 'replicas that confirm what they are sent'}")
        remedies.append(f"connect replicas to it until there are {replicas}")
    if "appendfsync" in wrong and settings.get("appendfsync") == EVERY_SECOND:
        reasons[0] += ", as with appendfsync everysec it answers some writes up to 2 s before they are in its file"
    return (
        f'store.durability is "{durability}", and {server} {" and ".join(reasons)}: '
        f'{" and ".join(remedies)}, or set store.durability to "{given}".'
    )


def _lacking(settings: Settings, durability: str) -> tuple[dict[str, str], list[str]]:
    """The settings that have to be changed for *durability*, with what is right, and those that are not told."""
    if durability == MEMORY:
        return {}, []
    wrong = {
        name: right[0] for name, right in NEEDED[durability].items() if name in settings and settings[name] not in right
    }
    untold = [name for name in NEEDED[durability] if name not in settings]
    if settings.get("maxmemory") != "0" and settings.get(EVICTION) != NO_EVICTION:
        if EVICTION in settings:
            wrong[EVICTION] = NO_EVICTION
        else:
            untold.append(EVICTION)
    return wrong, untold


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
