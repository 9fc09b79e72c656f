# Histories of a durable session against a model of Redis, each from one seed: what was acknowledged is never lost.
#
# A history has random steps: publishes, acknowledgements, connections of the client that come and go, commands that the
# server executes and answers that arrive, one by one, a connection to Redis that is cut anywhere, a server that refuses
# writes, a worker that is killed and replaced by one that knows only what is stored, and a session that moves to
# another worker while one of the two may be killed. In some, a replica has to have what is acknowledged, and the server
# ends with the worker: the next one has what the replica had. Some messages expire, and all end when they have waited
# for long enough: what has ended is never sent and leaves Redis, and nothing else is dropped. Some have shared bodies,
# which are in Redis as long as a pack refers to them.
import os
from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from hiredis import ReplyError

from broker.mqtt.packets import PUBREL, Ack, Publish
from broker.reasons import DropReason
from broker.session.message import Message
from broker.store.durable.pack import Pack, add_body, decode_pack
from broker.store.durable.queue_state import decode_state
from broker.store.durable.removals import Words
from broker.store.durable.shared_bodies import COUNT
from broker.store.redis.connection import packed
from tests.store.durable.durable_worker import HOLD, WALL, DurableWorker, answered, incarnation
from tests.store.durable.model import ModelRedis, ModelReplica

HISTORIES = int(os.environ.get("WEIR_HISTORIES", "120"))
STEPS = 400
WEIGHTS = {
    "publish": 12,
    "acknowledge": 20,
    "execute": 15,
    "answer": 15,
    "wait": 8,
    "age": 2,
    "settle": 8,
    "other": 3,
    "connect": 4,
    "disconnect": 2,
    "cut": 2,
    "fill": 2,
    "kill": 1,
    "move": 2,
}


SLACK = 1.1  # seconds: that a message may last longer, as a time is stored in whole seconds
SHARED = 64  # bytes of a payload whose body is shared by RECEIVERS


@dataclass
class Sent:
    """A publish, and what has become of it. *ends*: when, by the clock of the workers."""

    message: Message
    qos: int
    ends: float
    expires: bool  # it has an expiry of its own
    received: int = 0  # times; at QoS 2, as its client counts
    acknowledged: bool = False  # by the client
    packet_id: int = 0
    safe: bool = False  # its publisher was answered before its worker was killed

    def settled(self) -> bool:
        return answered(self.message)


class OtherSession:
    """A `Writer` whose transactions are under way when those of the queue would be."""

    def __init__(self) -> None:
        self.dirty = self.held = False

    def removes(self, now: float) -> list[Words]:
        return []

    def removed(self, errors: list[ReplyError], now: float) -> None:
        raise AssertionError

    def collect(self, now: float, wall: float) -> list[bytes]:
        return [packed("SET", "other", "x")]

    def committed(self, errors: list[ReplyError], now: float) -> None:
        assert [] == errors


class History:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.redis = ModelRedis()
        self.window = self.random.choice([1, 3, 20])
        self.qos = self.random.choice([[1], [2], [1, 2]])
        self.bursts = self.random.choice([[1], [1, 2, 5], [1, 2, 40], [1, 1, 1, 1, 1, 1, 300]])
        self.sent: list[Sent] = []
        self.unacknowledged: list[Sent] = []  # that the client has received over this connection
        self.unreleased: dict[int, Sent] = {}  # of QoS 2, as the client remembers them by packet id
        self.to_complete: list[int] = []  # packet ids of PUBRELs that the client has received over this connection
        self.newest = -1  # of the messages that the client has
        self.workers = 1
        self.crashed = False  # what the client has acknowledged may come again
        self.lasting = self.random.choice([[0.0], [0.0], [0.0, 2.0], [0.0, 0.0, 0.5, 3.0, 8.0, 60.0]])
        self.wide = self.random.choice([0.0, 0.5, 1.0])  # how many of the messages have a shared body
        self.ttl = self.random.choice([600.0, 600.0, 12.0])
        self.stalled = 0.0  # seconds that messages may have waited to be stored
        self.expired = 0  # messages, at all workers
        self.drained_at = 0.0  # when the client read last: what it reads was sent after that
        self.replica = self.random.choice([None, ModelReplica()])
        self.worker = self.start(self.redis, 1000.0)
        self.other = OtherSession()

    def start(self, redis: ModelRedis, now: float, expects: bool = False) -> DurableWorker:
        """The worker with the number `workers`."""
        return DurableWorker(redis, self.workers, now, expects=expects, ttl=self.ttl, replica=self.replica)

    def kill_worker(self) -> None:
        """The next worker knows nothing but what is stored."""
        self.ends(self.worker)
        self.redis.server.full = False
        if self.replica is not None:
            self.replica.away = False
            self.redis.values.clear()
            self.redis.values.update(self.replica.values)
        self.workers += 1
        self.worker = self.start(self.redis, self.worker.now)
        self.other = OtherSession()
        self.connect()

    def ends(self, worker: DurableWorker) -> None:
        """It is killed: whom it has not answered, nobody answers."""
        for sent in self.sent:
            sent.safe = sent.safe or sent.settled()
        self.crashed = True
        self.count_expired(worker)
        for redis in worker.connections:
            redis.cut(worker.now)

    def count_expired(self, worker: DurableWorker) -> None:
        self.expired += worker.client.dropped(DropReason.EXPIRED)

    def move(self) -> None:
        """The session moves to another worker; one of the two may be killed meanwhile."""
        former = self.worker
        former.disconnect()
        self.workers += 1
        self.return_replica()
        new = self.start(ModelRedis(self.redis.server), former.now, expects=True)
        killed = self.random.choice(["", "", "former", "new, early", "new, late"])
        self.pass_time(former, new)
        if killed == "new, early":
            self.ends(new)
            self.connect()
            return
        self.worker, self.redis, self.other = new, new.redis, OtherSession()
        given: list[bytes | None] = []
        former.owner.record.give(incarnation(new.number), given.append)
        self.pass_time(former, new)
        if killed == "former":
            self.ends(former)
            new.owner.take(incarnation(former.number), b"", new.now)
        else:
            former.until(lambda: len(given) > 0)
            if given[0] is None or decode_state(given[0])[0] is None:
                # The server was full: the rest is published again.
                former.owner.record.disown()
                self.crashed = True
            former.session.restore({})
            former.session.end()
            assert (0, 0) == (former.budget.used, former.budget.messages)
            if killed:
                self.kill_worker()
                return
            new.owner.take(b"", given[0] or b"", new.now)
        new.until(lambda: new.owner.ready)
        assert {} == new.owner.damage
        self.connect()

    def pass_time(self, former: DurableWorker, new: DurableWorker) -> None:
        """Publishes go to where the session is, and the connections to Redis are slow and may end."""
        for _ in range(self.random.choice([0, 1, 10, 50])):
            if self.random.random() < 0.3:
                self.publish(self.random.choice(self.bursts))
            for worker in (former, new):
                for redis in worker.connections:
                    redis.execute(self.random.choice([0, 1, 5]))
                    redis.answer(worker.now, self.random.choice([0, 1, 5]))
                worker.tick(self.random.choice([0.0, HOLD]))
                if self.random.random() < 0.01:
                    self.random.choice(worker.connections).cut(worker.now)

    def return_replica(self) -> None:
        if self.replica is not None:
            self.replica.away = False

    # The clients.

    def publish(self, count: int) -> None:
        for _ in range(count):
            qos = self.random.choice(self.qos)
            lasting = self.random.choice(self.lasting)
            ends = self.worker.now + min(lasting or self.ttl, self.ttl)
            wide = self.random.random() < self.wide
            payload = b"%0*d" % (SHARED if wide else 1, len(self.sent))
            message = self.worker.offer(payload, qos, lasting, wide)
            self.sent.append(Sent(message, qos, ends, 0 < lasting <= self.ttl))

    def connect(self) -> None:
        self.unacknowledged = []
        self.to_complete = []
        self.worker.connect(self.window)

    def disconnect(self) -> None:
        self.worker.disconnect()

    def read(self) -> None:
        """The client reads what was sent to it."""
        if self.worker.session.outbox is None:
            return
        for packet in self.worker.client.take():
            if isinstance(packet, Ack):
                assert PUBREL == packet.kind
                self.unreleased.pop(packet.packet_id, None)
                self.to_complete.append(packet.packet_id)
            else:
                assert isinstance(packet, Publish)
                self.take(packet)
        self.drained_at = self.worker.now

    def take(self, packet: Publish) -> None:
        number = int(packet.payload)
        sent = self.sent[number]
        assert sent.qos == packet.qos
        self.unacknowledged.append(sent)
        assert packet.dup or not sent.received, "a message was sent again and not marked"
        if not packet.dup:  # what was sent does not end
            assert self.drained_at < self.latest_end(sent), "a message was sent that has ended"
        if not self.crashed:
            assert not sent.acknowledged, "a message was sent again although the client has acknowledged it"
        if packet.qos == 2 and packet.packet_id in self.unreleased:
            assert self.unreleased[packet.packet_id] is sent, "two messages have one packet id"
            return
        ended = self.crashed and self.worker.now >= sent.ends  # at the worker that has crashed, if not here yet
        assert sent.received or number > self.newest or ended, "a message was overtaken"
        if packet.qos == 2:
            assert 0 == sent.received, "a message of QoS 2 came twice"
            self.unreleased[packet.packet_id] = sent
        self.newest = max(self.newest, number)
        sent.received += 1
        if sent.settled() or sent.safe:
            assert sent.packet_id in (0, packet.packet_id), "a message has another packet id"
        sent.packet_id = packet.packet_id

    def latest_end(self, sent: Sent) -> float:
        """When *sent* has ended at the latest: all of a pack last as long as its newest message, without an expiry."""
        return sent.ends + SLACK + (0.0 if sent.expires else self.stalled)

    def acknowledge(self, most: int) -> None:
        session, now = self.worker.session, self.worker.now
        if session.outbox is None:
            return
        for _ in range(min(most, len(self.unacknowledged))):
            position = self.random.choice([0, 0, self.random.randrange(len(self.unacknowledged))])
            sent = self.unacknowledged.pop(position)
            assert session.puback(sent.packet_id, now) if sent.qos == 1 else session.pubrec(sent.packet_id, 0, now)
            sent.acknowledged = True
        for packet_id in self.to_complete[:most]:
            session.pubcomp(packet_id, now)
        del self.to_complete[:most]

    # All of it.

    def step(self) -> None:
        random = self.random
        (what,) = random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if what == "publish":
            self.publish(random.choice(self.bursts))
        elif what == "acknowledge":
            self.read()
            self.acknowledge(random.choice([1, 1, 2, 3, 100]))
        elif what == "execute":
            for redis in self.worker.connections:
                redis.execute(random.choice([1, 2, 5, 100]))
        elif what == "answer":
            for redis in self.worker.connections:
                redis.answer(self.worker.now, random.choice([1, 2, 5, 100]))
        elif what == "wait":
            self.age(random.choice([0.0, HOLD / 2, HOLD, 0.2]))
        elif what == "age":
            self.age(random.choice([1.0, 3.0]))
        elif what == "settle":
            self.worker.turn()
        elif what == "other":
            self.worker.store.commit.soon(self.other)
        elif what == "connect":
            self.connect()
        elif what == "disconnect":
            self.disconnect()
        elif what == "cut":
            random.choice(self.worker.connections).cut(self.worker.now)
        elif what == "fill":
            self.redis.server.full = random.random() < 0.2
            if self.replica is not None:
                self.replica.away = random.random() < 0.2
        elif what == "move":
            self.move()
        else:
            self.kill_worker()
        self.worker.tick()

    def age(self, seconds: float) -> None:
        if not self.worker.store.commit.idle():
            self.stalled += seconds
        self.worker.tick(seconds)

    def look(self) -> None:
        """The client is away and time passes: what has ended leaves, and the counts are those of what is there."""
        worker, queue = self.worker, self.worker.queue
        self.redis.server.full = False
        self.return_replica()
        self.disconnect()
        worker.settle()
        worker.pass_time(self.random.choice([3.0, 5.0, 20.0]))
        worker.store.expiry.set(queue, 0.0)  # after a crash the counts are estimates until a sweep
        worker.pass_time(3.0)
        packs = [decode_pack(data, worker.now, WALL + worker.now) for data in self.redis.values.get(queue.key(), [])]
        there = [each for pack in packs for each in pack.messages if not queue.is_done(each.position)]
        self.check_counts(packs)
        for name, messages in worker.store.commit.bodies.read(packs).items():
            for index, (stored, *_) in messages.items():
                add_body(stored, self.redis.values[name][b"%d" % index])
        assert queue.exact
        assert (0, len(there)) == (queue.size, queue.count)
        assert sum(each.message.size for each in there) == queue.waiting_bytes
        numbers = {int(each.message.payload) for each in there}
        for number, sent in enumerate(self.sent):
            if number in numbers and sent.qos == 1:
                assert worker.now < self.latest_end(sent) + 2, f"message {number} has ended and is kept"
            if (sent.safe or sent.settled()) and not sent.acknowledged and worker.now < sent.ends:
                assert number in numbers, f"message {number} was lost"

    def check_counts(self, packs: list[Pack]) -> None:
        """Each shared body in Redis counts the *packs* that refer to it, which are all that there are."""
        counts = {key: int(value[COUNT]) for key, value in self.redis.values.items() if b":bodies:" in key}
        expected: Counter[bytes] = Counter()
        for pack in packs:
            expected.update(self.worker.store.commit.bodies.read([pack]).keys())
        assert counts == expected

    def finish(self) -> None:
        """All faults are over: the client gets everything, and nothing stays."""
        if self.random.random() < 0.5:
            self.look()
        self.redis.server.full = False
        self.return_replica()
        self.connect()
        self.worker.until(self.at_rest)
        now = self.worker.now
        for number, sent in enumerate(self.sent):
            kept = (sent.safe or sent.settled()) and now < sent.ends
            assert sent.acknowledged or not kept, f"message {number} was lost"
        self.count_expired(self.worker)
        queue, budget = self.worker.queue, self.worker.budget
        kinds = b":queue:", b":released:", b":bodies:"
        assert [] == [key for key in self.redis.values if any(kind in key for kind in kinds)]
        assert {} == self.unreleased
        assert (0, 0, 0) == (queue.count, queue.size, queue.waiting_bytes)
        assert (0, 0) == (budget.used, budget.messages)

    def at_rest(self) -> bool:
        self.read()
        self.acknowledge(1000)
        worker = self.worker
        idle = worker.store.commit.idle() and not worker.busy()
        return idle and not worker.queue.count and not worker.session.inflight()


@pytest.mark.parametrize("part", range(4))
def test_what_was_acknowledged_is_delivered_in_order(part: int) -> None:
    """A message that its publisher may forget would be lost, overtaken, or come under two packet ids."""
    expired = 0
    for seed in range(part * HISTORIES // 4, (part + 1) * HISTORIES // 4):
        history = History(seed)
        try:
            for _ in range(STEPS):
                history.step()
            history.finish()
            expired += history.expired
        except Exception as error:
            raise AssertionError(f"history {seed}") from error
    assert expired
