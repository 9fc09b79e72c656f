# Backups of sessions with logs, and of groups that share a log: with real servers of Redis, and a model of the log,
# which stands for a Kafka that both nodes have; or with a log in streams of Redis.
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from broker.carrier.redis_keys import LogKeys
from broker.config.schema import Config
from broker.store.durable.lease_scripts import digest_of, lease_field
from broker.store.durable.leases import EPOCH, first_saved, saved_position
from broker.store.durable.stored_session import HEAD, LEFT
from broker.store.logs.topics import Partition
from broker.store.redis.keys import Keys
from supervisor.backup import logs as backup_logs
from supervisor.backup.backup_file import BackupReader, BackupWriter
from supervisor.backup.export import Export
from supervisor.backup.logs import LogExport
from supervisor.backup.restore import Restore
from tests.cluster.durable_node import StartRedis
from tests.cluster.test_durable_backup import everything, head, restored
from tests.cluster.test_shared_applications import FILTER, SERVICES, Services, numbers
from tests.innode import Node
from tests.redis_servers import RunningRedis

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # real servers

KEYS: Final = Keys("weir")
GROUP: Final = digest_of(b"group")
EPOCH_1: Final = b"1" * EPOCH
EPOCH_2: Final = b"2" * EPOCH
PATIENT: Final = Config(application=replace(SERVICES, pack_timeout=60.0))


@pytest.mark.parametrize("qos", [1, 2])
def test_services_go_on_where_they_were(
    nodes: Callable[..., Node], start_redis: StartRedis, tmp_path: Path, qos: int
) -> None:
    """A group would begin where its log ends, and lose what it has not read; or read what it was passed on already."""
    node = Services(nodes, start_redis(), 2, PATIENT)
    node.subscribe(0, "service1")
    node.subscribe(1, "service2")
    node.subscribe(1, "service3", b"$share/other/" + FILTER)
    node.subscribe(0, "service4", FILTER)
    node.until(lambda: node.balanced("service1", "service2"))
    node.publish(0, *numbers(0, 20), qos=qos)
    node.until(lambda: all(len(node.got[name]) == 20 for name in ("service3", "service4")))
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) == 20)
    node.leave("service3")
    node.leave("service4")
    node.publish(1, *numbers(20, 40), qos=qos)
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) == 40)
    for _ in range(5):
        node.go_on()  # all is acknowledged
    before = {name: list(got) for name, got in node.got.items()}
    for broker in list(node.node):  # partitions are leased still
        node.node.kill(broker)
        node.links[broker][0].end(most=0, late=0)

    server = start_redis()
    with BackupWriter(tmp_path / "backup", head()) as backup:
        taken = Export(node.redis.client(), KEYS, backup)
        taken.run()
        backup.finish()
    assert (4, []) == (taken.services, taken.unreadable)
    restored(server, tmp_path / "backup")
    other = Services(nodes, server, 1, PATIENT, log=node.log, sources=1000)
    for name in ("service1", "service2", "service3", "service4"):
        other.connect(0, name)
        other.got[name] += before[name]
    other.until(lambda: other.balanced("service1", "service2") and other.balanced("service3"))
    other.publish(0, *numbers(40, 60), qos=qos)
    other.until(lambda: all(len(other.got[name]) >= 60 for name in ("service3", "service4")))
    other.until(lambda: len(other.got["service1"] + other.got["service2"]) >= 60)

    wanted = sorted(numbers(0, 60))
    assert wanted == sorted(other.got["service1"] + other.got["service2"])
    assert wanted == sorted(other.got["service3"]) == sorted(other.got["service4"])


def held(epoch: bytes, member: bytes, offset: int) -> bytes:
    return b"L" + epoch + digest_of(member) + first_saved(offset)


def session(name: bytes, *leases: bytes) -> tuple[bytes, list[bytes], list[int], list[bytes]]:
    return name, [HEAD, b"\x93\x01\xcd\x0e\x10\xc0", LEFT, b"1.0", *leases], [], []


def test_what_has_changed_between_a_group_and_its_sessions_is_read_once_more(
    start_redis: StartRedis, tmp_path: Path
) -> None:
    """A partition would be read by nobody, or what was passed on since be lost."""
    members = [digest_of(b"one"), digest_of(b"gone")]
    state = [b"p0", held(EPOCH_1, b"one", 5), b"p1", held(EPOCH_1, b"one", 6), b"p2", b"F" + first_saved(7)]
    state += [b"p3", held(EPOCH_1, b"gone", 8), b"r" + digest_of(b"one"), b"1", b"e", b"99"]
    file = tmp_path / "backup"
    with BackupWriter(file, head(True)) as backup:
        backup.group(GROUP, state, members)
        backup.group(digest_of(b"ended"), state, [digest_of(b"gone")])
        same = (lease_field(GROUP, 0), EPOCH_1 + first_saved(15))
        newer = (lease_field(GROUP, 1), EPOCH_2 + first_saved(16), lease_field(GROUP, 2), EPOCH_2 + first_saved(17))
        backup.session(*session(b"one", *same, *newer))
        backup.finish()
    server = start_redis()
    restored(server, file)
    stored: Any = server.client().hgetall(KEYS.group_state(GROUP))

    assert held(EPOCH_1, b"one", 5) == stored.pop(b"p0"), "the worker that adopts the session releases it"
    assert {b"p1": 6, b"p2": 7, b"p3": 8} == {name: saved_position(stored[name]) for name in (b"p1", b"p2", b"p3")}
    assert {b"F"} == {stored[name][:1] for name in (b"p1", b"p2", b"p3")}
    assert {b"p1", b"p2", b"p3", b"e"} == stored.keys()
    assert {members[0]} == server.client().smembers(KEYS.group_members(GROUP))
    assert 0 == server.client().exists(KEYS.group_state(digest_of(b"ended")))
    assert not [key for key in server.client().scan_iter() if b"restoring" in key]


def logs_of(server: RunningRedis) -> dict[bytes, Any]:
    return {key: value for key, value in everything(server).items() if key.startswith(b"weir:log:")}


def make_log(server: RunningRedis, topic: str, partitions: int, records: int, first: int = 0) -> None:
    keys, client = LogKeys("weir"), server.client()
    client.hset(keys.topics, topic, f"{partitions} 100 1000")
    for number in range(partitions):
        partition = Partition(topic, number)
        client.hset(keys.head(partition), mapping={"next": records, "bytes": 7 * records, "log": topic[:1] * 16})
        for offset in range(first, records):
            fields = {"record": b"%d" % offset, "at": 1000 + offset, "before": 7 * offset}
            client.xadd(keys.records(partition), fields, id=f"{offset + 1}-0")  # type: ignore[arg-type]


def test_logs_in_redis_are_in_a_backup(
    start_redis: StartRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits there would be lost, or come under other offsets than those that sessions know."""
    monkeypatch.setattr(backup_logs, "PAGE", 3)
    server, other, file = start_redis(), start_redis(), tmp_path / "backup"
    make_log(server, "a", 2, 10, first=4)
    make_log(server, "b", 1, 0)
    make_log(other, "a", 2, 3)  # these are replaced
    make_log(other, "b", 1, 3)
    server.client().hset(LogKeys("weir").topics, "going", "1 100 1000")
    with BackupWriter(file, head()) as backup:
        exported = LogExport(server.client(), "weir", backup)
        exported.run()
        backup.finish()
    server.client().hdel(LogKeys("weir").topics, "going")

    assert (2, []) == (exported.topics, exported.unreadable)
    restored(other, file)
    keys = LogKeys("weir")
    for partition in (Partition("a", 0), Partition("a", 1), Partition("b", 0)):
        for client in (server.client(), other.client()):
            assert client.hgetall(keys.head(partition))
        assert server.client().xrange(keys.records(partition)) == other.client().xrange(keys.records(partition))
        assert server.client().hgetall(keys.head(partition)) == other.client().hgetall(keys.head(partition))
    assert logs_of(server).keys() == logs_of(other).keys()
    assert server.client().hgetall(keys.topics) == other.client().hgetall(keys.topics)


def test_a_damaged_log_is_named_and_costs_no_other(start_redis: StartRedis, tmp_path: Path) -> None:
    """One key of another type would cost the whole backup."""
    server = start_redis()
    make_log(server, "a", 1, 2)
    make_log(server, "b", 1, 2)
    server.client().delete(LogKeys("weir").head(Partition("a")))
    server.client().set(LogKeys("weir").head(Partition("a")), "no hash")
    server.client().set(KEYS.group_state(GROUP), "no hash")
    with BackupWriter(tmp_path / "backup", head()) as backup:
        taken = Export(server.client(), KEYS, backup, logs=LogExport(server.client(), "weir", backup))
        taken.run()
        backup.finish()

    assert [KEYS.group_state(GROUP), b"a"] == taken.unreadable


def test_a_restore_that_fails_leaves_neither_groups_nor_logs(start_redis: StartRedis, tmp_path: Path) -> None:
    """The next restore would be refused, or mix two of them."""
    server, other, file = start_redis(), start_redis(), tmp_path / "backup"
    make_log(server, "a", 1, 3)
    with BackupWriter(file, head()) as backup:
        backup.group(GROUP, [b"p0", b"F" + first_saved(7)], [digest_of(b"one")])
        backup.session(*session(b"one"))
        LogExport(server.client(), "weir", backup).run()
        backup.finish()

    class Killed(Restore):
        def _make_visible(self) -> None:
            raise KeyboardInterrupt

    with BackupReader(file) as found, pytest.raises(KeyboardInterrupt):
        Killed(other.client(), "weir", "weir", found).run()

    assert {} == everything(other)
