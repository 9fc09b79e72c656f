# What a Redis server promises by its settings, and what is said of one that promises too little.
from collections.abc import Callable

import pytest

from broker.config.schema import MEMORY, POWER, PROCESS, REPLICATED
from supervisor.redis_durability import Settings, described, durability_of, from_info, read_settings, shortfall
from tests.redis_servers import SERVERS, SYNCS_AT_ONCE, RunningRedis, free_port, replicate

StartRedis = Callable[..., RunningRedis]

GOOD = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "aof-load-truncated": "no",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "save": "",
}


def but(**changed: str | None) -> Settings:
    """GOOD with other values; None: the server does not tell the setting."""
    settings: dict[str, str | None] = {**GOOD, **{name.replace("_", "-"): value for name, value in changed.items()}}
    return {name: value for name, value in settings.items() if value is not None}


@pytest.mark.parametrize(
    ("settings", "gives"),
    [
        (but(), POWER),
        (but(appendfsync="no"), PROCESS),
        (but(appendfsync="everysec"), MEMORY),
        (but(no_appendfsync_on_rewrite="yes"), PROCESS),
        (but(appendonly="no"), MEMORY),
        (but(appendonly="no", save="1 1"), MEMORY),
        (but(maxmemory="1", maxmemory_policy="allkeys-lru"), MEMORY),
        (but(maxmemory="1", maxmemory_policy="volatile-ttl"), MEMORY),
        (but(maxmemory="1"), POWER),
        (but(maxmemory_policy="allkeys-lru"), POWER),  # without a limit nothing is evicted
        (but(appendfsync=None), MEMORY),
        (but(appendonly=None), MEMORY),
        (but(no_appendfsync_on_rewrite=None), PROCESS),
        (but(maxmemory=None), POWER),
        (but(maxmemory=None, maxmemory_policy="allkeys-lru"), MEMORY),
        (but(maxmemory="1", maxmemory_policy=None), MEMORY),
        ({}, MEMORY),
    ],
)
def test_the_settings_of_a_server_say_what_it_promises(settings: Settings, gives: str) -> None:
    """A node would promise that sessions survive what they do not survive."""
    assert gives == durability_of(settings)
    assert [bool(shortfall(settings, wanted, "it")) for wanted in (MEMORY, PROCESS, POWER)] == [
        False,
        gives == MEMORY,
        gives != POWER,
    ]


@pytest.mark.parametrize(
    ("settings", "wanted", "sentence"),
    [
        (
            but(appendfsync="no"),
            POWER,
            'store.durability is "power", and it gives "process": set appendfsync to always there, '
            'or set store.durability to "process".',
        ),
        (
            but(appendonly="no", appendfsync="everysec", maxmemory="1", maxmemory_policy="allkeys-lru"),
            POWER,
            'store.durability is "power", and it gives "memory", as with appendfsync everysec it answers some writes '
            "up to 2 s before they are in its file: set appendonly to yes, appendfsync to always and maxmemory-policy "
            'to noeviction there, or set store.durability to "memory".',
        ),
        (
            but(appendfsync=None, no_appendfsync_on_rewrite=None, maxmemory_policy=None, maxmemory=None),
            POWER,
            'store.durability is "power", and it does not tell its appendfsync, no-appendfsync-on-rewrite and '
            'maxmemory-policy: allow its user the command CONFIG GET, or set store.durability to "memory".',
        ),
        (
            but(appendonly="no", appendfsync=None),
            PROCESS,
            'store.durability is "process", and it gives "memory" and does not tell its appendfsync: set appendonly to '
            'yes there and allow its user the command CONFIG GET, or set store.durability to "memory".',
        ),
        (
            but(replicas="1"),
            REPLICATED,
            'store.durability is "replicated", and it has 1 replica that confirms what it is sent: connect replicas to '
            'it until there are 2, or set store.durability to "power".',
        ),
        (
            but(appendonly="no"),
            REPLICATED,
            'store.durability is "replicated", and it gives "memory" and has 0 replicas that confirm what they are '
            "sent: set appendonly to yes there and connect replicas to it until there are 2, or set store.durability "
            'to "memory".',
        ),
        (but(replicas="2"), REPLICATED, ""),
        (but(replicas="2", appendfsync="no", no_appendfsync_on_rewrite=None), REPLICATED, ""),
    ],
)
def test_a_shortfall_is_a_sentence_that_says_what_to_change(settings: Settings, wanted: str, sentence: str) -> None:
    """An administrator would have to find out which settings of Redis a class needs."""
    assert sentence == shortfall(settings, wanted, "it", replicas=2)


def test_settings_are_described_with_those_that_are_not_told() -> None:
    """The log would show a setting that is unknown as one that is off."""
    assert (
        "appendonly yes, appendfsync not told, no-appendfsync-on-rewrite no, aof-load-truncated no, "
        "maxmemory 0, maxmemory-policy noeviction, save empty"
    ) == described(but(appendfsync=None))


def test_replicas_count_that_confirm_what_they_are_sent() -> None:
    """A replica that copies the data still, or is stuck, would count, and publishers wait once the node has begun."""
    online = {"ip": "::1", "port": 1, "state": "online", "offset": 5, "lag": 1}
    told = {"connected_slaves": 5, "slave0": online, "slave1": online | {"state": "wait_bgsave"}}
    told |= {"slave2": online | {"lag": 11}, "slave3": "damaged", "slave5": online}

    assert {"replicas": "1"} == from_info(told)
    assert {} == from_info({"connected_slaves": 0})
    assert described(but(replicas="1")).endswith("save empty, replicas 1")


def settings_of(server: RunningRedis, **options: str) -> Settings:
    with server.client(**options) as client:
        return read_settings(client, client.info())


@pytest.mark.system
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: ".".join(map(str, server.version)))
def test_a_server_of_each_version_tells_its_settings(start_redis: StartRedis, server: object) -> None:
    """A version that answers CONFIG GET in another form would be refused, or trusted."""
    assert but() == settings_of(start_redis(server))
    other = settings_of(start_redis(server, more="appendfsync everysec\nsave 60 1000\nmaxmemory 1mb\n"))
    assert but(appendfsync="everysec", save="60 1000", maxmemory="1048576") == other
    assert MEMORY == durability_of(settings_of(start_redis(server, more="appendonly no\n")))


@pytest.mark.system
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: ".".join(map(str, server.version)))
def test_a_server_of_each_version_tells_its_replicas(start_redis: StartRedis, server: object) -> None:
    """A version that tells of replicas in another form would be refused."""
    primary = start_redis(server, more=SYNCS_AT_ONCE, port=free_port())
    replicate(primary, start_redis(server))

    assert but(replicas="1") == settings_of(primary)


@pytest.mark.system
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: ".".join(map(str, server.version)))
def test_where_config_is_forbidden_info_tells_a_part(start_redis: StartRedis, server: object) -> None:
    """The start would end in an error of redis-py at a managed service, or promise what nobody has looked at."""
    told = but(appendfsync=None, no_appendfsync_on_rewrite=None, aof_load_truncated=None, save=None)
    denied = start_redis(server, more="user weak on >weak ~* &* +@all -config\n")
    assert told == settings_of(denied, username="weak", password="weak")

    assert told == settings_of(start_redis(server, more='rename-command CONFIG ""\n'))
