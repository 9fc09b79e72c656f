# The embedded Redis under the supervisor: real servers that die, hang, have a full disk or data of another version.
import contextlib
import os
import resource
import select
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import trio
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker.config.schema import MEMORY, POWER, PROCESS
from broker.store.redis.connection import packed
from broker.store.redis.keys import DURABLE_FORMAT
from supervisor import aof_sync, redis_process, store_era
from supervisor.embedded_redis import EmbeddedRedis
from supervisor.redis_address import open_client
from supervisor.redis_durability import durability_of, read_settings
from supervisor.redis_server import MULTI_PART, RedisServer, RedisUnusable
from tests.conftest import ROOT
from tests.redis_servers import SERVERS
from tests.store.loop import Lines

pytestmark = pytest.mark.system  # real servers

PATIENCE = 10.0  # seconds for what should take milliseconds


class Log(Lines):
    def error(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))


@pytest.fixture(params=SERVERS, ids=lambda server: ".".join(map(str, server.version)))
def server(request: pytest.FixtureRequest) -> RedisServer:
    """Each version that is installed, one after another."""
    found: RedisServer = request.param
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "redis"


@pytest.fixture
def newest() -> RedisServer:
    if not SERVERS:
        pytest.skip("there is no redis-server")
    return SERVERS[-1]


@asynccontextmanager
async def running(
    folder: Path, server: RedisServer, log: Log | None = None, memory: int = 0, durability: str = MEMORY
) -> AsyncIterator[EmbeddedRedis]:
    """A server that answers; it is stopped at the end, as the node would."""
    embedded = EmbeddedRedis(folder, server, memory, log or Log(), durability)
    with trio.CancelScope() as limit:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(embedded.keep, fail)
            with trio.fail_after(PATIENCE):
                await embedded.ready.wait()
            yield embedded
            limit.deadline = trio.current_time() + PATIENCE
            embedded.stop()
    assert not limit.cancelled_caught


def fail(sentence: str) -> None:
    pytest.fail(sentence)


def pid(embedded: EmbeddedRedis) -> int:
    assert embedded.process is not None
    return embedded.process.pid


async def refused(folder: Path, server: RedisServer, durability: str = MEMORY) -> str:
    """Start a server that must not start; the sentence."""
    sentences: list[str] = []
    with trio.fail_after(PATIENCE):
        try:
            await EmbeddedRedis(folder, server, 0, Log(), durability).keep(sentences.append)
        except RedisUnusable as error:
            return str(error)
    (sentence,) = sentences
    return sentence


def ask(embedded: EmbeddedRedis, *words: Any) -> Any:
    once = Retry(NoBackoff(), 0)
    with redis.Redis(
        unix_socket_path=str(embedded.socket), socket_timeout=PATIENCE, retry=once, decode_responses=True
    ) as client:
        return client.execute_command(*words)


async def until(done: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not done():
            await trio.sleep(0.005)  # a process tells nobody how it feels


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("durability", [PROCESS, POWER])
async def test_its_era_ends_when_power_may_have_taken_something(
    folder: Path, newest: RedisServer, durability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers would believe numbers that the past has left, or double QoS 2 after a planned stop."""
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(store_era, "BOOT_ID", boot)
    eras = []
    for number, dies in enumerate([False, True, False]):
        boot.write_text(str(number))
        async with running(folder, newest, durability=durability) as embedded:
            eras.append(embedded.address.era)
            if dies:
                embedded.stopping.set()  # the supervisor dies as well
                os.kill(pid(embedded), signal.SIGKILL)
                await until(lambda: ended(pid(embedded)))

    assert 8 == len(eras[0])
    assert eras[0] == eras[1]
    assert (durability == POWER) == (eras[1] == eras[2])


async def test_it_listens_on_its_socket_only_and_keeps_its_data(folder: Path, server: RedisServer) -> None:
    """Other users or machines could connect, or a restart of the node would lose all data."""
    async with running(folder, server) as embedded:
        assert ask(embedded, "SET", "k", "v")
        assert {"port": "0"} == ask(embedded, "CONFIG", "GET", "port")
        assert (0o700, 0o700) == (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(embedded.socket.stat().st_mode))
        assert str(embedded.socket) == str(embedded.address)
        former = pid(embedded)
    assert ended(former)
    async with running(folder, server) as embedded:
        assert "v" == ask(embedded, "GET", "k")


@pytest.mark.parametrize(("durability", "gives"), [(MEMORY, PROCESS), (PROCESS, PROCESS), (POWER, POWER)])
async def test_its_settings_fit_the_class(folder: Path, server: RedisServer, durability: str, gives: str) -> None:
    """An answered write would be in memory alone while a sync runs, or each class would cost what power costs."""
    async with running(folder, server, durability=durability) as embedded:
        with open_client(embedded.address) as client:
            assert gives == durability_of(read_settings(client, client.info()))
            assert [None if durability == MEMORY else b"%d" % DURABLE_FORMAT] == [client.get("weir:format")]


@pytest.mark.parametrize("durability", [PROCESS, POWER])
async def test_nothing_that_was_answered_is_lost_with_the_server(
    folder: Path, server: RedisServer, durability: str
) -> None:
    """kill -9 of the server, while it writes and rewrites its file, would cost stored messages."""
    log = Log()
    async with running(folder, server, log, durability=durability) as embedded:
        answered = 0

        def write() -> None:
            nonlocal answered
            with contextlib.suppress(redis.ConnectionError), open_client(embedded.address) as client:
                if server.version >= MULTI_PART:  # before, the process that rewrites holds our connection open
                    client.execute_command("BGREWRITEAOF")
                while True:
                    client.rpush("k", answered)
                    answered += 1

        async with trio.open_nursery() as writing:
            writing.start_soon(trio.to_thread.run_sync, write)
            await until(lambda: answered > 100)
            os.kill(pid(embedded), signal.SIGKILL)
        await until(lambda: len(log.named("embedded_redis_started")) == 2)

        assert answered <= ask(embedded, "LLEN", "k") <= answered + 1


async def test_what_it_writes_is_synced_each_second(
    folder: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power would cost half a minute: the kernel writes when it likes. The files change with each rewrite."""
    monkeypatch.setattr(aof_sync, "INTERVAL", 0.005)
    synced: set[Path] = set()

    def fdatasync(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    async with running(folder, server, durability=PROCESS) as embedded:
        for _ in range(2):
            synced.clear()
            ask(embedded, "SET", "k", "v")
            (written,) = sorted([*folder.glob("appendonly.aof"), *folder.glob("appendonlydir/*.incr.aof")])
            await until(partial(synced.__contains__, written))
            ask(embedded, "BGREWRITEAOF")
            await until(lambda: not is_rewriting(embedded))
            await until(lambda: len([*folder.glob("appendonlydir/*.incr.aof")]) <= 1)  # the former one is removed late


async def test_with_power_only_the_server_syncs(
    folder: Path, newest: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write would be synced twice."""
    monkeypatch.setattr(aof_sync, "INTERVAL", 0.001)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    async with running(folder, newest, durability=POWER) as embedded:
        for number in range(50):
            ask(embedded, "SET", "k", number)

    assert [] == synced


async def test_data_of_a_newer_format_is_a_sentence_and_stays(folder: Path, server: RedisServer) -> None:
    """A former version of Weir would take the sessions of a newer one for damaged."""
    async with running(folder, server) as embedded:
        ask(embedded, "MSET", "weir:format", "1000", "k", "v")
    for durability in (PROCESS, POWER):
        said = await refused(folder, server, durability)

        assert f"The durable sessions in the embedded Redis ({folder}) have format 1000, and this version" in said
    async with running(folder, server) as embedded:
        assert ["1000", "v"] == ask(embedded, "MGET", "weir:format", "k")


async def test_with_power_a_full_disk_ends_the_server_before_it_answers(folder: Path, newest: RedisServer) -> None:
    """A write that is not on the disk would be answered. The log says why the server dies."""
    log = Log()
    async with running(folder, newest, log, durability=POWER) as embedded:
        ask(embedded, "SET", "k", "v")
        resource.prlimit(pid(embedded), resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        with pytest.raises(redis.ConnectionError):
            ask(embedded, "SET", "large", "x" * 300_000)
        await until(lambda: len(log.named("embedded_redis_started")) == 2)

        assert ["v", None] == ask(embedded, "MGET", "k", "large")
        assert "no space is left on the disk" in str(log.named("embedded_redis_died")[0]["why"])


async def test_a_server_that_dies_is_started_again_with_its_data(folder: Path, server: RedisServer) -> None:
    """After kill -9 of Redis the node would continue without Redis for ever, or with an empty one."""
    log = Log()
    async with running(folder, server, log) as embedded:
        ask(embedded, "SET", "k", "v")
        former = pid(embedded)
        os.kill(former, signal.SIGKILL)
        await until(lambda: len(log.named("embedded_redis_started")) == 2)

        assert pid(embedded) not in (0, former)
        assert "v" == ask(embedded, "GET", "k")
    assert [-signal.SIGKILL] == [facts["code"] for facts in log.named("embedded_redis_died")]


async def test_a_start_lasts_until_the_data_is_loaded(folder: Path, server: RedisServer) -> None:
    """After a restart with much data, Redis would answer LOADING to the first clients."""
    folder.mkdir()
    records = (b"*3\r\n$3\r\nSET\r\n$6\r\n%06d\r\n$1\r\nx\r\n" % number for number in range(200_000))
    (folder / "appendonly.aof").write_bytes(b"".join(records))  # newer servers take it over into their folder
    async with running(folder, server) as embedded:
        assert 200_000 == ask(embedded, "DBSIZE")


async def test_a_server_that_hangs_is_replaced(
    folder: Path, newest: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node would wait for ever for a Redis that does not answer."""
    monkeypatch.setattr(redis_process, "CHECK", 0.05)
    monkeypatch.setattr(redis_process, "HANG", 3)
    log = Log()
    async with running(folder, newest, log) as embedded:
        os.kill(pid(embedded), signal.SIGSTOP)
        await until(lambda: len(log.named("embedded_redis_started")) == 2)

    assert ["does not answer" in str(facts["why"]) for facts in log.named("embedded_redis_died")] == [True]


async def test_a_server_that_pauses_is_left_alone(
    folder: Path, newest: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk would cost a restart, which is slower still."""
    monkeypatch.setattr(redis_process, "CHECK", 0.05)
    monkeypatch.setattr(redis_process, "HANG", 12)
    async with running(folder, newest) as embedded:
        for _ in range(3):  # some four looks each
            os.kill(pid(embedded), signal.SIGSTOP)
            await trio.sleep(0.4)
            os.kill(pid(embedded), signal.SIGCONT)
            await trio.sleep(0.2)

        assert 0 == embedded.deaths
        assert ask(embedded, "PING")


async def test_it_is_stopped_when_its_task_is_cancelled(folder: Path, newest: RedisServer) -> None:
    """A supervisor that ends by an error of its own would leave a server behind."""
    embedded = EmbeddedRedis(folder, newest, 0, Log())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(embedded.keep, fail)
        await embedded.ready.wait()
        former = pid(embedded)
        nursery.cancel_scope.cancel()

    assert ended(former)


def test_it_dies_with_its_supervisor(folder: Path, newest: RedisServer) -> None:
    """After kill -9 of the supervisor its Redis would hold the data folder, and no new node could start."""
    program = f"""
import trio
from pathlib import Path
from supervisor.embedded_redis import EmbeddedRedis
from supervisor.redis_server import RedisServer
from tests.supervisor.test_embedded_redis import Log

async def main():
    embedded = EmbeddedRedis(Path({str(folder)!r}), RedisServer(Path({str(newest.path)!r}), {newest.version}), 0, Log())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(embedded.keep, print)
        await embedded.ready.wait()
        print(embedded.process.pid, flush=True)

trio.run(main)
"""
    command = [sys.executable, "-c", program]
    supervisor = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        pidfd = os.pidfd_open(int(supervisor.stdout.readline()))
    supervisor.kill()
    supervisor.wait()
    watch = select.poll()
    watch.register(pidfd, select.POLLIN)
    assert watch.poll(1000), "it is still there a second later"
    os.close(pidfd)


async def test_it_refuses_writes_beyond_its_memory(folder: Path, server: RedisServer) -> None:
    """Redis would use up the memory of the machine, or evict sessions."""
    async with running(folder, server, memory=4 << 20) as embedded:
        with pytest.raises(redis.OutOfMemoryError):
            for number in range(100):
                ask(embedded, "SET", f"key{number}", "x" * 100_000)
        assert "x" * 100_000 == ask(embedded, "GET", "key0")


async def test_a_left_over_socket_does_not_stop_a_start(folder: Path, newest: RedisServer) -> None:
    """After a crash an administrator would have to remove a file."""
    async with running(folder, newest) as embedded:
        os.kill(pid(embedded), signal.SIGKILL)
        await until(lambda: embedded.deaths == 1)
    embedded.socket.unlink(missing_ok=True)
    embedded.socket.write_text("not even a socket")
    async with running(folder, newest) as embedded:
        assert ask(embedded, "PING")


async def test_a_file_that_is_cut_off_at_its_end_is_not_damaged(folder: Path, server: RedisServer) -> None:
    """After a power failure an administrator would have to repair the file."""
    async with running(folder, server) as embedded:
        for number in range(10):
            ask(embedded, "SET", f"key{number}", "x" * 100)
    (log_file,) = [*folder.glob("appendonly.aof"), *folder.glob("appendonlydir/*.incr.aof")]
    with log_file.open("rb+") as file:
        file.truncate(log_file.stat().st_size - 50)
    async with running(folder, server) as embedded:
        assert 9 == ask(embedded, "DBSIZE")


@pytest.mark.parametrize("left", [0, 3, 20])
async def test_what_is_written_after_a_torn_transaction_stays(folder: Path, server: RedisServer, left: int) -> None:
    """It would become a part of that transaction, and be lost with the next start; or half of it be carried out."""
    log = Log()
    async with running(folder, server) as embedded:
        ask(embedded, "SET", "first", "x")
    (file,) = [*folder.glob("appendonly.aof"), *folder.glob("appendonlydir/*.incr.aof")]
    whole = file.stat().st_size
    with file.open("ab") as torn:
        torn.write(packed("MULTI") + packed("SET", "half", "x") + packed("SET", "torn", "x" * 20)[: -2 - left])
    async with running(folder, server, log) as embedded:
        assert whole == file.stat().st_size
        ask(embedded, "SET", "later", "x")
    async with running(folder, server) as embedded:
        assert {"first", "later"} == set(ask(embedded, "KEYS", "*"))

    (facts,) = log.named("embedded_redis_file_cut")
    assert str(file) == facts["file"]


async def test_a_torn_file_that_cannot_be_cut_is_a_sentence(
    folder: Path, newest: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node would try for ever, or start without a word of what it has dropped."""
    async with running(folder, newest) as embedded:
        ask(embedded, "SET", "first", "x")
    (file,) = folder.glob("appendonlydir/*.incr.aof")
    with file.open("ab") as torn:  # as a server leaves it that has loaded a torn file before
        torn.write(packed("MULTI") + packed("MULTI") + packed("SET", "k", "x") + packed("EXEC") + packed("SET")[:-1])
    size = file.stat().st_size

    assert "is damaged" in await refused(folder, newest)
    assert size == file.stat().st_size


async def test_a_damaged_file_is_a_sentence_with_the_repair_command(folder: Path, server: RedisServer) -> None:
    """A node would refuse to start without a reason, or start with half of its data."""
    async with running(folder, server) as embedded:
        for number in range(10):
            ask(embedded, "SET", f"key{number}", "x" * 100)
    (log_file,) = [*folder.glob("appendonly.aof"), *folder.glob("appendonlydir/*.incr.aof")]
    head, between, tail = log_file.read_bytes().rpartition(b"$3\r\nSET")
    log_file.write_bytes(head + b"$3\r\nSETTER" + tail)
    assert between
    sentence = await refused(folder, server)

    assert sentence.startswith("The data of the embedded Redis is damaged: `")
    command = sentence.split("`")[1]
    assert Path(command.rstrip("'").rpartition(" ")[2]).is_file()
    if server is SERVERS[-1]:
        done = subprocess.run(["bash", "-c", command], input="y\n", text=True, capture_output=True)
        assert 0 == done.returncode, done.stdout
        async with running(folder, server) as embedded:
            assert 0 < ask(embedded, "DBSIZE") < 10


async def test_data_of_a_newer_server_is_a_sentence(folder: Path) -> None:
    """After a downgrade of Redis the user would see a log of Redis, or all data be lost without a word."""
    if len(SERVERS) < 2:
        pytest.skip("there is one version of redis-server only")
    older, newer = SERVERS[-2], SERVERS[-1]
    async with running(folder, newer) as embedded:
        ask(embedded, "HSET", "k", "f", "v")
        ask(embedded, "BGREWRITEAOF")
        await until(lambda: not is_rewriting(embedded))
    for old in {older, SERVERS[0]}:
        assert f"{old} cannot read the data in {folder}, which a newer version" in await refused(folder, old)


def is_rewriting(embedded: EmbeddedRedis) -> bool:
    told = ask(embedded, "INFO", "persistence")
    return bool(told["aof_rewrite_in_progress"] or told["aof_rewrite_scheduled"])


async def test_a_full_disk_is_logged_until_there_is_room(
    folder: Path, newest: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis refuses writes until there is room, and no log line would say why sessions are refused.

    A limit on the size of files stands in for the disk: it fails as a full one does, and can be lifted.
    """
    monkeypatch.setattr(redis_process, "CHECK", 0.05)
    log = Log()
    async with running(folder, newest, log) as embedded:
        hard = resource.prlimit(pid(embedded), resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid(embedded), resource.RLIMIT_FSIZE, (200_000, hard))
        ask(embedded, "SET", "large", "x" * 300_000)
        await until(lambda: bool(log.named("embedded_redis_write_failed")))
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            ask(embedded, "SET", "more", "x")
        resource.prlimit(pid(embedded), resource.RLIMIT_FSIZE, (hard, hard))
        await until(lambda: bool(log.named("embedded_redis_write_recovered")))

        assert ask(embedded, "SET", "more", "x")
        assert 0 == embedded.deaths


async def test_garbage_that_makes_another_command_is_damage_with_a_repair_command(
    folder: Path, server: RedisServer
) -> None:
    """After a loss of power a user would be told of an unknown command, and not what to do about it."""
    async with running(folder, server) as embedded:
        ask(embedded, "SET", "first", "x")
    (file,) = [*folder.glob("appendonly.aof"), *folder.glob("appendonlydir/*.incr.aof")]
    whole = file.stat().st_size
    with file.open("ab") as damaged:
        damaged.write(b"*1\r\n$5\r\nMULfZ\x0b\xfdG4B2O\x97\xc2\xacy8CI")
    sentence = await refused(folder, server)

    assert sentence.startswith("The data of the embedded Redis is damaged: `")
    if server is SERVERS[-1]:
        done = subprocess.run(["bash", "-c", sentence.split("`")[1]], input="y\n", text=True, capture_output=True)
        assert 0 == done.returncode, done.stdout
        assert whole == file.stat().st_size
        async with running(folder, server) as embedded:
            assert {"first"} == set(ask(embedded, "KEYS", "*"))
