# The server that `redis.url` names: whether it keeps what `store.durability` promises, at the start and later.
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import trio

from broker.config.schema import MEMORY, POWER, PROCESS, REPLICATED, Config, Redis, Store
from supervisor import node_redis
from supervisor.folder import NodeFolder
from supervisor.node_redis import NodeRedis
from supervisor.redis_server import RedisServer, RedisUnusable
from tests.redis_servers import HOST, PATIENCE, SERVERS, SYNCS_AT_ONCE, RunningRedis, free_port, replicate
from tests.supervisor.test_embedded_redis import Log

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]


def node_redis_of(url: str, durability: str, folder: Path, log: Log, prefix: str = "weir") -> NodeRedis:
    config = Config(redis=Redis(url=url, prefix=prefix), store=Store(durability=durability))
    return NodeRedis(config, NodeFolder("weir", str(folder)), log)


def refusal(url: str, durability: str, folder: Path) -> str:
    log = Log()
    with pytest.raises(RedisUnusable) as refused:
        node_redis_of(url, durability, folder, log)
    assert [] == log.events  # the sentence says it all
    return str(refused.value)


def keys_of(server: RunningRedis) -> list[bytes]:
    with server.client() as client:
        return sorted(client.keys())


@pytest.mark.parametrize(
    ("settings", "gives"),
    [("", POWER), ("appendfsync no\n", PROCESS), ("appendfsync everysec\n", MEMORY), ("appendonly no\n", MEMORY)],
)
def test_a_server_is_used_for_what_it_gives_and_refused_for_more(
    start_redis: StartRedis, tmp_path: Path, settings: str, gives: str
) -> None:
    """A node would promise what its server does not keep, or refuse a server that is good enough."""
    server = start_redis(more=settings)
    url = f"unix://{server.socket}"
    classes = [MEMORY, PROCESS, POWER]
    for durability in classes[: classes.index(gives) + 1]:
        log = Log()
        node_redis_of(url, durability, tmp_path, log)

        (told,) = log.named("redis_durability")
        assert (durability, gives, str(server.socket)) == (told["configured"], told["gives"], told["address"])
        assert settings.strip() in str(told["settings"])
        assert ([b"weir:format"] if durability != MEMORY else []) == keys_of(server)
    before = keys_of(server)
    for durability in classes[classes.index(gives) + 1 :]:
        said = refusal(url, durability, tmp_path)

        assert said.startswith(f'store.durability is "{durability}", and {url} gives "{gives}"')
        assert 1 == len(said.splitlines())
    assert before == keys_of(server)


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_a_server_that_loads_half_of_a_transaction_is_told(
    start_redis: StartRedis, tmp_path: Path, server: RedisServer
) -> None:
    """A loss of power would cost what was acknowledged long after it, and nobody would know why."""

    def is_told(setting: str, durability: str) -> bool:
        log = Log()
        running = start_redis(server, more=f"aof-load-truncated {setting}\n")
        node_redis_of(f"unix://{running.socket}", durability, tmp_path, log)
        return node_redis.TORN in [facts["text"] for facts in log.named("redis_log")]

    assert (server.name == "Redis") == is_told("yes", POWER)
    assert not is_told("no", POWER)
    assert not is_told("yes", MEMORY)


def test_a_server_that_does_not_tell_is_used_for_memory_alone(start_redis: StartRedis, tmp_path: Path) -> None:
    """A node at a managed service would not start, or promise what nobody has looked at."""
    server = start_redis(more="user weak on >secret ~* &* +@all -config\n")
    url = f"unix://weak:secret@{server.socket}"
    log = Log()
    node_redis_of(url, MEMORY, tmp_path, log)
    (told,) = log.named("redis_durability")
    assert (MEMORY, MEMORY) == (told["configured"], told["gives"])
    assert "appendfsync not told" in str(told["settings"])

    said = refusal(url, PROCESS, tmp_path)
    assert "does not tell its appendfsync: allow its user the command CONFIG GET, or" in said
    assert "secret" not in said
    assert [] == keys_of(server)


def test_a_newer_format_is_refused_by_those_who_read_it(start_redis: StartRedis, tmp_path: Path) -> None:
    """An older build would damage what a newer one has stored; one that stores nothing has no reason to refuse."""
    server = start_redis()
    url = f"unix://{server.socket}"
    with server.client() as client:
        client.set("weir:format", "1000")

        assert f"The durable sessions in {url} have format 1000" in refusal(url, PROCESS, tmp_path)
        assert b"1000" == client.get("weir:format")
    node_redis_of(url, MEMORY, tmp_path, Log())
    node_redis_of(url, PROCESS, tmp_path, Log(), "other")
    assert [b"other:format", b"weir:format"] == keys_of(server)


def test_replicas_are_needed_at_the_start(start_redis: StartRedis, tmp_path: Path) -> None:
    """A node would begin whose publishers are never answered, or promise what no replica has."""
    weak = "user weak on >secret ~* &* +@all -wait\n"
    server = start_redis(more=SYNCS_AT_ONCE + weak, port=free_port())
    url, log, least = f"unix://{server.socket}", Log(), "min-replicas-to-write"
    with server.client() as client:
        client.config_set(least, 1)  # it refuses writes
    said = refusal(url, REPLICATED, tmp_path)
    assert said == (
        f'store.durability is "replicated", and {url} has 0 replicas that confirm what they are sent: connect replicas '
        'to it until there are 1, or set store.durability to "power".'
    )
    assert [] == keys_of(server)
    with server.client() as client:
        client.config_set(least, 0)
        replicate(server, start_redis())
        client.config_set(least, 1)
    node_redis_of(url, REPLICATED, tmp_path, log)
    (told,) = log.named("redis_durability")
    assert (REPLICATED, REPLICATED) == (told["configured"], told["gives"])
    assert str(told["settings"]).endswith("replicas 1")

    said = refusal(f"unix://weak:secret@{server.socket}", REPLICATED, tmp_path)
    assert "denies its user a command that Weir needs" in said
    assert "wait" in said.lower()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is looked up without a pause."""
    monkeypatch.setattr(node_redis, "LOOKUP", 0.005)


async def until(done: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not done():
            await trio.sleep(0.005)  # the next look-up


async def test_settings_that_change_are_logged_once(
    start_redis: StartRedis, tmp_path: Path, quick: None, nursery: trio.Nursery
) -> None:
    """The node would go on to promise what its server does not keep any more, and nobody would know."""
    server, log = start_redis(), Log()
    watched = node_redis_of(f"unix://{server.socket}", PROCESS, tmp_path, log)
    nursery.start_soon(watched.watch, lambda: None)
    with server.client() as client:
        client.config_set("appendfsync", "everysec")
        await until(lambda: bool(log.named("redis_durability_lost")))
        looked_up = client.info("stats")["total_connections_received"] + 3
        await until(lambda: client.info("stats")["total_connections_received"] > looked_up)
        (lost,) = log.named("redis_durability_lost")
        assert "set appendfsync to always there" in str(lost["why"])

        client.config_set("appendfsync", "no")
        await until(lambda: bool(log.named("redis_durability_restored")))
        client.flushall()
        await until(lambda: client.exists("weir:format") == 1)
    assert 1 == len(log.named("redis_durability_lost"))


async def test_memory_asks_for_settings_only_once(
    start_redis: StartRedis, tmp_path: Path, quick: None, nursery: trio.Nursery
) -> None:
    """A server that forbids CONFIG would note each of our requests in its ACL LOG, every two seconds."""
    server, log = start_redis(more="user weak on >weak ~* &* +@all -config\n"), Log()
    watched = node_redis_of(f"unix://weak:weak@{server.socket}", MEMORY, tmp_path, log)
    with server.client() as client:
        client.acl_log_reset()
        nursery.start_soon(watched.watch, lambda: None)
        looked_up = client.info("stats")["total_connections_received"] + 3
        await until(lambda: client.info("stats")["total_connections_received"] > looked_up)

        assert [] == client.acl_log()


async def test_the_password_is_read_again(
    start_redis: StartRedis, tmp_path: Path, quick: None, nursery: trio.Nursery
) -> None:
    """A password could not be changed while the node runs; or a file that is wrong for a moment would end it."""
    server, log, file = start_redis(more="requirepass former\n"), Log(), tmp_path / "password"
    file.write_text("former")
    config = Config(redis=Redis(url=f"unix://{server.socket}", password_file=str(file)))
    watched = NodeRedis(config, NodeFolder("weir", str(tmp_path)), log)
    passwords = [watched.address.password]
    nursery.start_soon(watched.watch, lambda: passwords.append(watched.address.password))
    file.write_text("later")
    await until(lambda: len(log.named("redis_not_found")) == 1)
    file.unlink()
    await until(lambda: len(log.named("redis_not_found")) == 2)
    with server.client(password="former") as client:
        client.config_set("requirepass", "later")
    file.write_text("later")
    await until(lambda: len(passwords) == 2)

    assert ["former", "later"] == passwords
    assert "does not accept the user name or the password" in str(log.named("redis_not_found")[0]["why"])
    assert "redis.password_file: cannot read" in str(log.named("redis_not_found")[1]["why"])
    with watched.opener()() as client:
        assert client.ping()


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[int]:
    """The port of a sentinel, which knows no primary yet."""
    if not SERVERS:
        pytest.skip("there is no redis-server")
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind {HOST}\ndir {tmp_path}\n")
    process = subprocess.Popen([SERVERS[-1].path, config, "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with redis.Redis(host=HOST, port=port) as client:
                    client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline
                time.sleep(0.005)  # until it listens
        yield port
    finally:
        process.kill()
        process.wait()


def name_master(sentinel: int, port: int) -> None:
    """The primary is the server at *port* from now on, as after a failover."""
    with redis.Redis(host=HOST, port=sentinel) as client:
        if "weir" in client.sentinel_masters():
            client.sentinel_remove("weir")
        client.sentinel_monitor("weir", HOST, port, 1)


async def test_a_master_that_gives_less_is_logged_when_it_is_found(
    start_redis: StartRedis, tmp_path: Path, quick: None, nursery: trio.Nursery, sentinel: int
) -> None:
    """After a failover the node would promise what the new primary does not keep, and nobody would know."""
    ports = [free_port(), free_port()]
    start_redis(port=ports[0])
    lesser, log = start_redis(port=ports[1], more="appendfsync no\n"), Log()
    name_master(sentinel, ports[0])
    watched = node_redis_of(f"redis+sentinel://{HOST}:{sentinel}/weir", POWER, tmp_path, log)
    assert any("a sentinel may name a replica" in str(facts["text"]) for facts in log.named("redis_log"))
    moves: list[str] = []
    nursery.start_soon(watched.watch, lambda: moves.append(str(watched.address)))

    name_master(sentinel, ports[1])
    await until(lambda: bool(moves))

    (lost,) = log.named("redis_durability_lost")
    assert (f"{HOST}:{ports[1]}", [f"{HOST}:{ports[1]}"]) == (lost["address"], moves)
    assert 'gives "process": set appendfsync to always there' in str(lost["why"])
    assert [] == keys_of(lesser)
