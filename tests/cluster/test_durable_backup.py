# Backups of sessions that are stored, and nodes that go on with them: real servers of Redis, workers in this process.
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError as ConnectionLost
from typer.testing import CliRunner

from broker.cluster.owner import read_owner
from broker.cluster.registry import UNCERTAIN_FOR
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, Ack, Publish
from broker.routing.interest import interest_of
from broker.session.principal import ANONYMOUS
from broker.store.durable.dropped_queues import name_of
from broker.store.durable.pack import PACK
from broker.store.durable.shared_bodies import RECEIVERS
from broker.store.durable.tokens import COUNTED
from broker.store.redis.keys import DURABLE_FORMAT, LEASE, SLICES, Keys
from cli.main import app
from supervisor.backup import export, restore
from supervisor.backup.backup_file import SESSION, BackupReader, BackupUnusable, BackupWriter, Counts, Head
from supervisor.backup.export import Export
from supervisor.backup.restore import SHARE, Restore, RestoreRefused, share_name
from tests.cluster.durable_node import EXPIRY, Durable, StartRedis
from tests.innode import Node
from tests.inprocess import Client
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # real servers

FIRST = Path(__file__).parent / "backups" / "format-1"  # written by the first version: every later one has to read it


@pytest.fixture
def moved(start_redis: StartRedis, tmp_path: Path) -> Iterator[Callable[..., Durable]]:
    """`moved(node)`: a node with another Redis, to which a backup of *node* was restored."""
    made: list[Durable] = []

    def move(node: Durable, running: bool = False) -> Durable:
        server = start_redis()
        restored(server, backed_up(node, tmp_path / f"backup-{len(made)}", running))
        made.append(Durable(server))
        return made[-1]

    yield move
    for one in made:
        one.worker.close()


def head(running: bool = False, data_format: int = DURABLE_FORMAT) -> Head:
    return Head("weir", "0.1.0", data_format, 1_800_000_000.0, running)


def backed_up(node: Durable, file: Path, running: bool = False, era: bytes = b"") -> Path:
    with BackupWriter(file, head(running)) as backup:
        taken = Export(node.redis.client(), Keys("weir"), backup, era)
        taken.run()
        assert [] == taken.unreadable
        backup.finish()
    return file


def restored(server: RunningRedis, file: Path) -> Counts:
    with BackupReader(file) as backup:
        return Restore(server.client(), "weir", "weir", backup).run()


def sessions_of(file: Path) -> dict[bytes, tuple[bytes, list[bytes], list[int], list[bytes]]]:
    """By client id, what `BackupWriter.session()` takes."""
    found: dict[bytes, tuple[bytes, list[bytes], list[int], list[bytes]]] = {}
    with BackupReader(file) as backup:
        for kind, content in backup.frames():
            if kind == SESSION:
                client, fields, marks = content
                packs: list[bytes] = []
                found[client] = (client, fields, marks, packs)
            else:
                packs += content
    return found


def received(client: Client) -> list[tuple[bytes, int, bool]]:
    return [(each.payload, each.packet_id, each.dup) for each in client.receive() if isinstance(each, Publish)]


def as_format_2(server: RunningRedis) -> None:
    """Have the data of *server* as format 2 had it."""
    with server.client() as asked:
        for index in asked.keys("*:sessions:*"):
            clients = asked.hkeys(index)
            asked.delete(index)
            asked.sadd(index, *clients)


def indexes(server: RunningRedis) -> dict[bytes, bytes]:
    """What indexes say of each client id."""
    with server.client() as asked:
        return {name: value for index in asked.keys("*:sessions:*") for name, value in asked.hgetall(index).items()}


def everything(server: RunningRedis) -> dict[bytes, Any]:
    """All keys, with their values."""
    with server.client() as asked:
        return {key: asked.dump(key) for key in asked.scan_iter()}


def test_a_deep_queue_is_there_in_order(node: Durable, moved: Callable[..., Durable]) -> None:
    """Messages would be lost, doubled or in disorder."""
    node.subscriber("reader", b"a").socket.close()
    payloads = [b"%d" % number for number in range(3 * PACK)]
    node.publish(b"a", *payloads)
    large = [b"%d" % number + bytes(200_000) for number in range(8)]  # more than a frame has
    node.publish(b"a", *large)

    other = moved(node)

    reader = other.connect("reader")
    found: list[bytes] = []
    while len(found) < len(payloads) + len(large):
        messages = received(reader)
        assert list(range(len(found) + 1, len(found) + len(messages) + 1)) == [
            packet_id for _, packet_id, _ in messages
        ]
        found += [payload for payload, _, _ in messages]
        reader.send(*[Ack(PUBACK, packet_id) for _, packet_id, _ in messages])
        other.worker.advance(0.1)
    assert [*payloads, *large] == found


def test_an_exchange_of_qos_2_goes_on(node: Durable, moved: Callable[..., Durable]) -> None:
    """A message of QoS 2 would come twice, or its packet id be lost."""
    reader = node.subscriber("reader", b"a", qos=2)
    node.publish(b"a", b"1", b"2", qos=2)
    assert [b"1", b"2"] == [payload for payload, _, _ in received(reader)]
    reader.send(Ack(PUBREC, 2))
    assert [Ack(PUBREL, 2)] == reader.receive()
    reader.socket.close()
    node.worker.settle()

    reader = moved(node).connect("reader")

    packets = reader.receive()
    assert [(b"1", 1, True)] == [(one.payload, one.packet_id, one.dup) for one in packets if isinstance(one, Publish)]
    assert [Ack(PUBREL, 2)] == [one for one in packets if isinstance(one, Ack)]
    reader.send(Ack(PUBCOMP, 2))
    assert [] == reader.receive()


@pytest.mark.parametrize("running", (False, True))
def test_a_publish_that_is_sent_again_is_stored_once_if_all_is_of_one_moment(
    node: Durable, moved: Callable[..., Durable], running: bool
) -> None:
    """A stopped node's QoS 2 messages would be doubled, or those of one that ran be lost."""
    node.subscriber("reader", b"a", qos=2).socket.close()
    writer = node.connect("writer", V5)
    writer.send(Publish(b"a", b"1", 2, packet_id=1))
    assert [Ack(PUBREC, 1)] == writer.receive()
    node.worker.settle()

    other = moved(node, running)

    writer = other.connect("writer", V5)
    writer.send(Publish(b"a", b"1", 2, packet_id=1, dup=True))
    assert [Ack(PUBREC, 1)] == writer.receive()
    writer.send(Publish(b"a", b"2", 2, packet_id=2))
    assert [Ack(PUBREC, 2)] == writer.receive()
    reader = other.connect("reader")
    wanted = [(b"1", 1, True), (b"1", 2, False), (b"2", 3, False)] if running else [(b"1", 1, True), (b"2", 2, False)]
    assert [one[0] for one in wanted] == [one[0] for one in received(reader)]


def test_tokens_of_a_former_era_are_in_no_backup(node: Durable, start_redis: StartRedis, tmp_path: Path) -> None:
    """A loss of power, and a backup before the next start: a restored node would acknowledge a publish and drop it."""
    node.subscriber("reader", b"a", qos=2).socket.close()
    writer = node.connect("writer", V5)
    writer.send(Publish(b"a", b"1", 2, packet_id=1))
    assert [Ack(PUBREC, 1)] == writer.receive()
    node.worker.settle()
    client: Any = node.redis.client()
    (record,) = [key for key in client.scan_iter() if client.type(key) == b"hash" and client.hexists(key, COUNTED)]
    client.hset(record, COUNTED, client.hget(record, COUNTED) + b"era1")
    assert COUNTED in sessions_of(backed_up(node, tmp_path / "same", era=b"era1"))[b"writer"][1]

    server = start_redis()
    restored(server, backed_up(node, tmp_path / "later", era=b"era2"))
    other = Durable(server)

    try:
        writer = other.connect("writer", V5)
        writer.send(Publish(b"a", b"2", 2, packet_id=1, dup=True))  # the loss of power took back that 1 was released
        assert [Ack(PUBREC, 1)] == writer.receive()
        assert [b"1", b"2"] == [payload for payload, _, _ in received(other.connect("reader"))]
    finally:
        other.worker.close()


def test_no_publish_is_lost_if_a_queue_is_later_than_its_publisher(
    node: Durable, start_redis: StartRedis, tmp_path: Path
) -> None:
    """A publish would get the number of one that the queue has, and be acknowledged without being stored."""
    node.subscriber("reader", b"a", qos=2).socket.close()
    writer = node.connect("writer", V5)
    files = []
    for packet_id in (1, 2):
        writer.send(Publish(b"a", b"%d" % packet_id, 2, packet_id=packet_id))
        assert [Ack(PUBREC, packet_id)] == writer.receive()
        writer.send(Ack(PUBREL, packet_id))
        assert [Ack(PUBCOMP, packet_id)] == writer.receive()
        node.worker.advance(0.3)
        files.append(backed_up(node, tmp_path / f"at-{packet_id}", running=True))
    file = tmp_path / "backup"  # the writer of the first moment, and the reader of the second one
    with BackupWriter(file, head(True)) as backup:
        backup.session(*sessions_of(files[0])[b"writer"])
        backup.session(*sessions_of(files[1])[b"reader"])
        backup.finish()
    server = start_redis()
    restored(server, file)
    other = Durable(server)
    try:
        writer = other.connect("writer", V5)
        writer.send(Publish(b"a", b"3", 2, packet_id=3, dup=True))
        assert [Ack(PUBREC, 3)] == writer.receive()
        assert [b"1", b"2", b"3"] == [payload for payload, _, _ in received(other.connect("reader"))]
    finally:
        other.worker.close()


class Meanwhile(redis.Redis):
    """A client of a server on which something happens before the first sessions are read, or right after."""

    def __init__(self, server: RunningRedis, happens: Callable[[], None], after: bool = False) -> None:
        super().__init__(unix_socket_path=str(server.socket))
        self._happens: Callable[[], None] | None = happens
        self._after = after

    def eval(self, *arguments: Any) -> Any:
        happens, self._happens = self._happens, None
        found = super().eval(*arguments) if happens is None or self._after else None
        if happens is not None:
            happens()
        return super().eval(*arguments) if found is None else found


def test_a_session_that_moves_meanwhile_is_in_the_backup(node: Durable, tmp_path: Path) -> None:
    """A session would be missing, because its keys had another name when they were looked for."""
    node.subscriber("reader", b"a").socket.close()
    node.publish(b"a", b"1")
    gone = node.subscriber("gone", b"a", version=V5)  # in another slice, or it would be asked for before
    gone.socket.close()
    node.worker.settle()

    with BackupWriter(tmp_path / "backup", head(True)) as backup:
        Export(Meanwhile(node.redis, node.kill), Keys("weir"), backup).run()
        counts, _ = backup.finish()

    assert Counts(2, 1, 0) == counts


def test_a_session_that_ends_meanwhile_is_not_waited_for(node: Durable, tmp_path: Path) -> None:
    """The backup would fail, or have a session without a client id."""
    node.connect("reader")

    def end() -> None:
        node.connect("reader", V5, expiry=0, clean=True)
        node.worker.settle()

    with BackupWriter(tmp_path / "backup", head(True)) as backup:
        Export(Meanwhile(node.redis, end), Keys("weir"), backup).run()
        assert Counts(0, 0, 0) == backup.finish()[0]


SHARED = [b"%0300d" % number for number in range(3)]


def share(node: Durable) -> list[str]:
    """Sessions that are away, with messages whose bodies Redis has once."""
    clients = [f"reader-{number}" for number in range(RECEIVERS)]
    for client_id in clients:
        node.subscriber(client_id, b"a").socket.close()
    node.publish(b"a", *SHARED)
    node.worker.settle()
    assert [] != node.redis.client().keys("*:bodies:*")
    return clients


def test_bodies_that_are_stored_once_are_in_the_queues_of_a_backup(
    node: Durable, moved: Callable[..., Durable]
) -> None:
    """The messages would be lost, or a session with them."""
    clients = share(node)

    other = moved(node)

    for client_id in clients:
        assert SHARED == [payload for payload, _, _ in received(other.connect(client_id))]
    assert [] == other.redis.client().keys("*:bodies:*")


def test_a_queue_that_waits_to_be_taken_apart_is_no_session(node: Durable, tmp_path: Path) -> None:
    """A restored node would have a session with an impossible client id, which the backup calls damaged."""
    share(node)
    client, keys = node.redis.client(), Keys("weir")
    worker: Any = client.hkeys(keys.durable_owners("weir"))[0]
    of_worker, name = keys.sessions(3, worker), name_of(b"reader-1")
    client.hset(of_worker.index, name, b"")
    client.rpush(of_worker.queues + name, b"pack")

    assert RECEIVERS == len(sessions_of(backed_up(node, tmp_path / "backup")))


def test_messages_that_are_delivered_meanwhile_are_not_missed(node: Durable, tmp_path: Path) -> None:
    """A session would be called damaged, as it has read what it waited for while the backup was taken."""
    clients = share(node)
    bodies = node.redis.client().keys("*:bodies:*")

    def deliver() -> None:
        for client_id in clients:
            reader = node.connect(client_id)
            reader.send(*[Ack(PUBACK, packet_id) for _, packet_id, _ in received(reader)])
        node.worker.settle()
        node.worker.advance(0.1)
        assert 0 == node.redis.client().exists(*bodies)
        node.publish(b"a", SHARED[1])

    with BackupWriter(tmp_path / "backup", head(running=True)) as backup:
        taken = Export(Meanwhile(node.redis, deliver, after=True), Keys("weir"), backup)
        taken.run()
        backup.finish()

    assert [] == taken.unreadable
    assert RECEIVERS == len(sessions_of(tmp_path / "backup"))


@pytest.mark.parametrize("damage", ["missing", "another type"])
def test_a_body_that_is_lost_is_told(node: Durable, tmp_path: Path, damage: str) -> None:
    """A backup would lack messages without a word."""
    clients = share(node)
    client = node.redis.client()
    for key in client.keys("*:bodies:*"):
        client.delete(key)
        if damage == "another type":
            client.set(key, "x")

    with BackupWriter(tmp_path / "backup", head()) as backup:
        taken = Export(client, Keys("weir"), backup)
        taken.run()
    assert sorted(clients) == sorted(each.decode() for each in taken.unreadable)


def test_many_sessions_are_read_in_calls_of_bounded_size(
    node: Durable, moved: Callable[..., Durable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind the first call would be missing."""
    monkeypatch.setattr(export, "CALL", 1)
    monkeypatch.setattr(export, "SESSIONS", 3)
    monkeypatch.setattr(export, "PAGE", 2)
    monkeypatch.setattr(restore, "BATCH", 5)
    names = [f"client-{number}" for number in range(40)]
    for name in names:
        node.subscriber(name, b"a").socket.close()
    node.publish(b"a", b"1")
    publisher = node.worker.connect("retainer")
    publisher.send(*[Publish(b"kept/%d" % number, b"1", 1, True, packet_id=number + 1) for number in range(40)])
    node.worker.settle()

    other = moved(node)

    assert {(b"1", 1, True)} == {one for name in names for one in received(other.connect(name))}
    assert 40 == sum(
        other.worker.retained.get(b"kept/%d" % number, other.worker.clock.now) is not None for number in range(40)
    )


def test_a_damaged_session_is_named_and_costs_no_other(node: Durable, tmp_path: Path) -> None:
    """One value that cannot be read would cost an operator the backup of a million sessions."""
    node.subscriber("reader", b"a").socket.close()
    node.connect("other")
    with node.redis.client() as asked:
        (key,) = asked.keys("*:session:*:other")
        asked.set(bytes(key).replace(b":session:", b":queue:"), "no list")
        asked.set(Keys("weir").retained(3), "no hash")
    with BackupWriter(tmp_path / "backup", head()) as backup:
        taken = Export(node.redis.client(), Keys("weir"), backup)
        taken.run()
        counts, _ = backup.finish()

    assert ([b"other", Keys("weir").retained(3)], Counts(1, 0, 0)) == (taken.unreadable, counts)


def test_the_command_names_what_is_damaged(start_redis: StartRedis, tmp_path: Path) -> None:
    """An operator would take a backup for whole that lacks sessions."""
    server, file = start_redis(), tmp_path / "backup"
    restored(server, FIRST)
    with server.client() as asked:
        (key,) = asked.keys("*:session:*:writer")
        asked.delete(key)
        asked.set(key, "no hash")
    settings = ["--set", "store.durability=process", "--set", f"redis.url=unix://{server.socket}"]

    done = CliRunner().invoke(app, ["backup", str(file), "--folder", str(tmp_path / "node"), *settings])

    assert (0, "What is damaged could not be read and is not in it: writer") == (done.exit_code, done.stderr.strip())
    assert done.stdout.startswith("Backed up 1 session and 1 retained message")


def test_a_node_with_data_is_left_as_it_is(node: Durable, start_redis: StartRedis, tmp_path: Path) -> None:
    """Sessions of two nodes would be mixed, or messages that clients wait for be replaced by older ones."""
    node.connect("reader")
    file = backed_up(node, tmp_path / "backup")
    only_retained = start_redis()
    with only_retained.client() as asked:
        asked.hset(Keys("weir").retained(0), "topic", "value")
    just_restored = start_redis()
    restored(just_restored, file)

    for server in (node.redis, only_retained, just_restored):
        before = everything(server)
        with pytest.raises(RestoreRefused, match="has sessions or retained messages"):
            restored(server, file)
        assert before == everything(server)


def test_other_keys_of_the_server_are_no_data(start_redis: StartRedis) -> None:
    """A server that others use as well, or under another prefix, could not be restored to."""
    server = start_redis()
    with server.client() as asked:
        asked.hset(Keys("weir-2").retained(0), "topic", "value")
        asked.set("session", "1")
        asked.hset(Keys("weir").durable_owners("weir"), f"{7:016x}", 0)
        asked.set(Keys("weir").owner(b"phone"), "1 2 3 4 5")

    assert Counts(2, 1, 1) == restored(server, FIRST)


def test_data_of_an_older_format_is_backed_up(node: Durable, moved: Callable[..., Durable]) -> None:
    """A node that was stopped before it was upgraded would have an empty backup. Format 2 had sets as indexes."""
    node.subscriber("reader", b"a").socket.close()
    node.publish(b"a", b"1")
    as_format_2(node.redis)

    assert [b"1"] == [payload for payload, _, _ in received(moved(node).connect("reader"))]


def test_a_backup_of_an_older_format_is_restored(start_redis: StartRedis, node: Durable, tmp_path: Path) -> None:
    """Backups would have to be taken anew after each upgrade. What an index has follows from the record."""
    node.subscriber("reader", b"a/+", qos=2).socket.close()
    node.connect("here")
    node.worker.settle()
    file = tmp_path / "backup"
    with BackupWriter(file, head(data_format=2)) as backup:
        Export(node.redis.client(), Keys("weir"), backup).run()
        backup.finish()
    server = start_redis()
    restored(server, file)

    said = indexes(server)
    assert {b"reader": interest_of([b"a/+"]), b"here": b""} == {name: value[4:] for name, value in said.items()}
    assert indexes(node.redis) == said


def test_newer_data_is_refused(start_redis: StartRedis, tmp_path: Path) -> None:
    """All sessions would be taken for damaged, one after another."""
    server = start_redis()
    with BackupWriter(tmp_path / "backup", head(data_format=DURABLE_FORMAT + 1)) as backup:
        backup.finish()

    with pytest.raises(RestoreRefused, match="use the version of Weir that wrote it"):
        restored(server, tmp_path / "backup")
    assert {} == everything(server)


def test_a_restore_that_fails_leaves_nothing(node: Durable, start_redis: StartRedis, tmp_path: Path) -> None:
    """A node would serve a part of its sessions, or an operator have to clean Redis by hand."""
    node.subscriber("reader", b"a").socket.close()
    node.publish(b"a", *[bytes(500_000) for _ in range(8)])
    file = backed_up(node, tmp_path / "backup")
    server = start_redis()
    with server.client() as asked:
        asked.config_set("maxmemory", int(asked.info("memory")["used_memory"]) + 2_500_000)

        with pytest.raises(RestoreRefused, match=r"redis\.memory.*maxmemory.\.$"):
            restored(server, file)

        assert {} == everything(server)
        asked.config_set("maxmemory", 0)
    assert 1 == restored(server, file).sessions


def test_a_file_that_changes_meanwhile_is_not_restored(node: Durable, start_redis: StartRedis, tmp_path: Path) -> None:
    """What was not checked would be served."""
    node.connect("reader")
    file = backed_up(node, tmp_path / "backup")
    server = start_redis()
    with BackupReader(file) as backup:
        backup.check()
        with file.open("r+b") as changed:
            changed.seek(-1, os.SEEK_END)
            changed.write(b"?")

        with pytest.raises(BackupUnusable, match="damaged"):
            Restore(server.client(), "weir", "weir", backup).run()

    assert {} == everything(server)


def test_what_a_killed_restore_has_left_is_replaced(start_redis: StartRedis) -> None:
    """It would be in the way for ever, or be mixed with what is restored."""
    server = start_redis()
    with server.client() as asked:
        left = Keys("weir").sessions(Keys("weir").slice_of(b"old"), share_name(7))
        asked.hset(left.records + b"old", "", "head")
        asked.rpush(left.queues + b"old", "pack")
        asked.hset(left.index, "old", "")
        asked.hset(Keys("weir").restoring(3), "old", "value")
        asked.set(Keys("weir").owner(b"old"), f"1 {share_name(7).decode()} 7 weir -")

    restored(server, FIRST)

    found = everything(server)
    assert not any(b"old" in key or b"restoring" in key for key in found)
    with server.client() as asked:
        assert [b"kept"] == [topic for number in range(SLICES) for topic in asked.hkeys(Keys("weir").retained(number))]


def test_a_session_that_is_restored_has_an_owner_as_long_as_it_lasts(start_redis: StartRedis) -> None:
    """A client that comes to another worker than the one that adopted its session would get an empty one."""
    server = start_redis()
    restored(server, FIRST)

    with server.client() as asked:
        found = {name: asked.get(Keys("weir").owner(name)) for name in (b"reader", b"writer")}
        left = asked.ttl(Keys("weir").owner(b"writer"))

    for owner in found.values():
        known = read_owner(owner)
        assert known is not None and ("weir", ANONYMOUS) == (known.worker.node, known.user)
        assert known.worker.incarnation_text.encode().startswith(SHARE)
    assert EXPIRY + LEASE - 60 < left <= EXPIRY + LEASE


def test_a_restored_session_is_found_from_any_worker(
    node: Durable, nodes: Callable[..., Node], start_redis: StartRedis, tmp_path: Path
) -> None:
    """Clients would get empty sessions, while what waits for them is at another worker."""
    names = [f"client-{number}" for number in range(12)]
    for name in names:
        node.subscriber(name, b"a").socket.close()
    node.publish(b"a", b"1")
    server = start_redis()
    restored(server, backed_up(node, tmp_path / "backup"))
    workers = nodes(2, None, server, durable=True)
    shared = [worker.worker.protocol.store.count() for worker in workers]
    workers.advance(2 * UNCERTAIN_FOR)

    clients = [workers[0].connect(name, clean_start=False) for name in names]
    workers.settle()

    assert 12 == sum(shared) and 0 not in shared
    assert [[(b"1", 1, True)]] * 12 == [received(client) for client in clients]


def test_a_restore_that_loses_its_connection_is_seen_by_nobody(start_redis: StartRedis) -> None:
    """A worker that starts would serve half of the sessions."""
    server = start_redis()
    with BackupReader(FIRST) as backup:
        asked = server.client()
        made = Restore(asked, "weir", "weir", backup)
        backup.check()
        server.kill()
        with pytest.raises(ConnectionLost):
            made.run()
    server.start()
    assert [] == server.client().keys("weir:owners:*") + server.client().keys("*:retained")


def test_a_backup_of_the_first_format_is_restored(start_redis: StartRedis) -> None:
    """A newer version could not read the backups of those before it."""
    server = start_redis()

    assert Counts(2, 1, 1) == restored(server, FIRST)

    node = Durable(server)
    try:
        kept = node.worker.retained.get(b"kept", node.worker.clock.now)
        assert kept is not None and b"value" == kept.payload
        assert node.connect("writer", V5).connack.session_present
        assert [(b"waits", 1, True)] == received(node.connect("reader"))
    finally:
        node.worker.close()
