# A worker with one durable session, a client of it, and a model of Redis; time passes when the test says so.
from collections.abc import Callable
from typing import Final

from broker.config.schema import Overload
from broker.metrics.counters import Counters
from broker.mqtt.packets import V311
from broker.overload.gate import Gate
from broker.session.expiry import WEEK
from broker.session.limits import SessionLimits
from broker.session.message import NEVER, RELEASED, Message
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.store.durable.adoption import AdoptedSession
from broker.store.durable.application_logs import LogSettings
from broker.store.durable.commit_delays import Holds
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.queue import DurableQueue
from broker.store.durable.record import SessionRecord
from broker.store.durable.replication import Replication
from broker.store.durable.shared_bodies import RECEIVERS, SharedBodies
from broker.store.durable.store import DurableStore
from broker.store.durable.store_gate import StoreGate
from broker.store.redis.address import RedisAddress
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import CommandPipeline
from broker.worker_id import WorkerId
from tests.session.receiver import PLENTY, Receiver, message
from tests.store.durable.model import ModelRedis, ModelReplica
from tests.store.durable.model_log import ModelLink, ModelLog
from tests.store.loop import Lines

CLIENT: Final = b"client"
KEYS: Final = Keys("weir")
HOLD: Final = 0.002
WALL: Final = 1_800_000_000.0
EXPIRY: Final = 3600
LONG: Final = 100_000  # turns: more than anything takes


def incarnation(number: int) -> bytes:
    return b"%016x" % number


def replication_of(commands: CommandPipeline, number: int, replicas: int, log: Lines) -> Replication:
    """What says whether *replicas* replicas have what the worker *number* has stored."""
    me, counters = incarnation(number), Counters()
    number_key, mark = KEYS.commit_number(me), KEYS.mark(me)
    return Replication(commands, commit_number=number_key, mark=mark, replicas=replicas, counters=counters, log=log)


def store_of(
    commands: CommandPipeline,
    number: int,
    budget: MessageBudget,
    clock: Callable[[], float],
    ttl: float = WEEK,
    workers: int = 1,
    replication: Replication | None = None,
    soon: Callable[[float], None] = lambda when: None,
) -> DurableStore:
    """The store of the worker *number*, the first of *workers*; `fenced` of its commit is to be set.

    *ttl*: seconds that a message may wait. *soon* has its `tick()` called at a time.
    """
    me = incarnation(number)

    def wall() -> float:
        return WALL + clock()

    gate = StoreGate(Gate(Overload(), "store", 1, 0.0), lambda gate, now: None)
    fence, commit_number = KEYS.fence(me), KEYS.commit_number(me)
    commit = GroupCommit(
        commands,
        fence=fence,
        commit_number=commit_number,
        wall=wall,
        holds=Holds(HOLD),
        gate=gate,
        counters=Counters(),
        bodies=SharedBodies(KEYS, me, ttl),
        replication=replication,
    )
    return DurableStore(commands, commit, KEYS, WorkerId("node", 0, number), workers, budget, wall, ttl, soon)


def receiver_of(record: SessionRecord, client: str, budget: MessageBudget, queue: int = PLENTY) -> Receiver:
    """The session of *client*, which is stored by *record*; as for `OneSession`."""
    receiver = Receiver(expiry=EXPIRY)
    limits = SessionLimits(inflight=65535, pending=9, queue=queue, queue_bytes=PLENTY, budget=budget)
    present = record.queue() if record.application else record.present_queue()
    session = receiver.session = Session(client, limits, receiver.counters, present)
    session.storage = record
    session.expiry = EXPIRY
    session.limit(limits)
    session.restore(dict.fromkeys(record.released_ids(), RELEASED))
    return receiver


class OneSession:
    """A `SessionOwner` of one session, that of CLIENT: the stored one, or a new one."""

    def __init__(
        self, store: DurableStore, budget: MessageBudget, queue: int = PLENTY, application: bool = False
    ) -> None:
        """*queue*: how many messages may wait. *application*: a new session is one of an APPLICATION client."""
        self.damage: dict[str, str] = {}  # why what is stored of a client is damaged
        self.client = Receiver()
        self.ready = False
        self.found: AdoptedSession | None = None
        self._store = store
        self._budget = budget
        self._most = queue
        self._application = application

    def has(self, client_id: str) -> bool:
        return False

    def adopt(self, session: AdoptedSession, now: float) -> None:
        assert CLIENT.decode() == session.client_id
        self.found = session

    def adopted(self, now: float) -> None:
        found = self.found
        self._serve(self._store.begin(CLIENT, self._application) if found is None else found.record)
        if found is None:
            self.record.store_head(EXPIRY, None, True)
        else:
            assert EXPIRY == found.stored.expiry
        self.ready = True

    def expect(self) -> None:
        """The session comes from another worker: `take()` follows."""
        self._serve(self._store.expect(CLIENT, self._application)[0])

    def take(self, former: bytes, state: bytes, now: float) -> None:
        """See `DurableStore.take()`."""
        self._store.take(CLIENT, former, state, self._taken, now)

    def _taken(self, session: AdoptedSession | None, now: float) -> None:
        self.found = session
        self.client.session.restore(dict.fromkeys(self.record.released_ids(), RELEASED))
        self.ready = True

    def _serve(self, record: SessionRecord) -> None:
        self.record = record
        self.client = receiver_of(record, "client", self._budget, self._most)

    def expect_cold(self, sessions: int) -> None:
        pass

    def keep_cold(self, entries: list[bytes], incarnation: bytes) -> list[bytes]:
        return entries[::2]

    def renamed(self, clients: list[bytes]) -> None:
        raise AssertionError(clients)

    def damaged(self, client_id: str, why: str, here: bool, now: float) -> None:
        self.damage[client_id] = why

    def end(self) -> None:
        self.client.session.end()
        self.record.end()


class DurableWorker:
    """Begins with what *redis* has stored, as the worker *number* of its node, after all others have ended."""

    def __init__(
        self,
        redis: ModelRedis,
        number: int = 1,
        now: float = 1000.0,
        queue: int = PLENTY,
        expects: bool = False,
        ttl: float = WEEK,
        replica: ModelReplica | None = None,
        log: ModelLog | None = None,
        passed: int = 200,
        device: bool = False,
    ) -> None:
        """*queue*: how many messages may wait; *ttl*: for how many seconds.

        *expects*: the session comes later, from a worker that lives. *replica*: has to have what is stored. *log*: the
        session is one of an APPLICATION client, whose messages wait there, unless it is one of a *device*; *passed*:
        those that are passed on at once.
        """
        self.redis = redis
        self.now = now
        self.jump = 0.0  # seconds by which the clock of the machine was set forward
        self.number = number
        self.budget = MessageBudget(PLENTY)
        self.fenced: list[bytes] = []
        self.log = Lines()
        self.commands = CommandPipeline(redis, RedisAddress(path="/model"), "test", self.log)
        self.connections = [redis]
        replication: Replication | None = None
        if replica is not None:
            self.connections.append(ModelRedis(redis.server, replica))
            second = CommandPipeline(self.connections[1], RedisAddress(path="/model"), "second", self.log)
            replication = replication_of(second, number, 1, self.log)
        self.store = store_of(
            self.commands, number, self.budget, lambda: self.now + self.jump, ttl, replication=replication
        )
        self.store.commit.fenced = self._fenced
        self.owner = OneSession(self.store, self.budget, queue, log is not None and not device)
        self.link = ModelLink(log or ModelLog(), number)
        if log is not None:
            settings = LogSettings(most=passed, mirrored=True)
            self.store.keep_logs(self.link, Gate(Overload(), "log", 2, 0.0), settings, self.log)
        self.store.start(now)
        if expects:
            redis.server.keep(KEYS.commit_number(incarnation(number)), b"0")
            if replica is not None:
                replica.values[KEYS.commit_number(incarnation(number))] = b"0"
            redis.values[KEYS.durable_owners("node")][incarnation(number)] = b"0"  # it has begun before
            self.store._owner = self.owner
            self.owner.expect()
            return
        self.store.serve(self.owner, now)
        self.until(lambda: self.owner.ready)
        self.settle()

    def _fenced(self, clients: list[bytes], now: float) -> None:
        self.fenced += clients
        for client in clients:
            self.store.taken(client)

    @property
    def queue(self) -> DurableQueue:
        return self.owner.record.queue()

    @property
    def client(self) -> Receiver:
        return self.owner.client

    @property
    def session(self) -> Session:
        return self.client.session

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.client.now = self.now
        self.store.tick(self.now)

    def turn(self, seconds: float = HOLD) -> None:
        """Redis and the log execute and answer everything, and some time passes."""
        for redis in self.connections:
            redis.execute()
            redis.answer(self.now)
        self.log_turn()
        self.tick(seconds)

    def log_turn(self) -> None:
        """The log stores, tells and gives everything."""
        link = self.link
        link.answer()
        link.store()
        link.tell(self.now)
        link.give(self.now)

    def pass_time(self, seconds: float) -> None:
        """Have *seconds* pass, in turns of a second, and settle."""
        end = self.now + seconds
        while self.now < end:
            self.turn(min(1.0, end - self.now))
        for _ in range(20):
            self.turn()
        self.settle()

    def until(self, done: Callable[[], bool]) -> None:
        """Take turns until *done*."""
        for _ in range(LONG):
            if done():
                return
            self.turn()
        raise AssertionError("it does not come to rest")

    def settle(self) -> None:
        """Take turns until everything is stored, and nothing is under way."""
        self.until(lambda: self.store.commit.idle() and not self.busy() and self.link.idle())

    def busy(self) -> bool:
        """Whether a command or a reply is under way, or something is to be appended to the log."""
        logs = self.store.logs
        return any(redis.busy() for redis in self.connections) or (logs is not None and logs.has_work())

    def connect(self, window: int = 65535) -> None:
        self.owner.record.store_head(EXPIRY, None, True)
        self.client.now = self.now
        self.client.connect(V311, window=window)

    def more(self, count: int) -> list[Receiver]:
        """Further sessions, whose clients are away: "1", "2" and so on."""
        found: list[Receiver] = []
        for number in range(1, count + 1):
            record = self.store.begin(b"%d" % number)
            record.store_head(EXPIRY, None, False)
            found.append(receiver_of(record, str(number), self.budget))
        self.settle()
        return found

    def disconnect(self) -> None:
        self.owner.record.store_head(EXPIRY, None, False)
        self.session.detach()

    def offer(self, payload: bytes, qos: int = 1, lasting: float = 0.0, wide: bool = False) -> Message:
        """Have the session receive a message of a publish, which expires after *lasting* seconds; 0.0: never.

        *wide*: so many other queues have it that its body is shared, if it is not a small one.
        """
        offered = message(payload, qos, expires=self.now + lasting if lasting else NEVER)
        if wide:
            hold(offered, RECEIVERS)
        self.session.offer(offered, self.now)
        return offered


def hold(published: Message, queues: int) -> None:
    """Have *queues* other queues get *published*, none of which will store it; to be called before a session does."""
    for _ in range(queues):
        published.hold()
    published.holders = queues


def answered(published: Message) -> bool:
    """Whether the publisher has its answer, but for queues of `hold()`."""
    completion = published.completion
    others = RECEIVERS if published.holders >= RECEIVERS else 0
    return completion is None or completion.pending == others
