# The world of one history: a Redis, the workers of a node, and their clients; time passes when a step says so.
#
# It knows where each session is, as the registry of sessions does: what that does under faults is tested elsewhere.
# Faults happen to everything that has a place in Redis or in a process: connections are cut with commands executed or
# not, answers come late, Redis ends or loses its power, its memory is full, workers end, stand still and go on.
#
# A step is a name and a number from which all its choices follow (chance.py).
from collections.abc import Callable
from typing import Final

from broker.session.expiry import WEEK
from broker.session.queue import UNLIMITED
from broker.session.session import Session
from broker.store.durable import pack, parts
from broker.store.durable.index import READ, deadline_of
from broker.store.durable.pack import PACK, PACKET_IDS
from broker.store.durable.stored_session import DamagedRecord, read_record
from tests.store.durable.model import ModelServer
from tests.store.durable.model_log import ModelLog
from tests.tools.faults.durable.checker import LOST, PACKET_ID_REUSED, REORDERED, Checker, Violation
from tests.tools.faults.durable.history import Died, Event, Message, matches
from tests.tools.simulate.chance import Chance
from tests.tools.simulate.client import SimClient
from tests.tools.simulate.link import Link, Outgoing
from tests.tools.simulate.transfer import Hold, Take, Transfer
from tests.tools.simulate.worker import KEYS, NODE, Place, SimWorker

WALL: Final = 1_800_000_000.0
HOLD: Final = 0.002
TOPICS: Final = ("a", "b")
APPLICATIONS: Final = ((), (), ("s1",), ("s1", "s2"), ("s1", "s2", "p2"))
QUIET: Final = 4000  # turns: everything comes to rest in some hundred
STUCK: Final = "stuck"
FEW: Final = 3  # messages of a pack
LEFT: Final = "left behind"
Step = tuple[str, int]


def _have_few_packet_ids(window: int) -> None:
    """Have queues use so few packet ids that they come round within a history; *window* 0: as many as ever.

    Packs are shorter then, as they are to have fewer messages than there are packet ids.
    """
    messages = FEW if window else PACK
    for module in (pack, parts):
        vars(module).update(PACK=messages, PACKET_IDS=window + 3 * messages if window else PACKET_IDS)


class World:
    def __init__(self, number: int, tell: Callable[[str], None] | None = None) -> None:
        """*number*: what its kind follows from. *tell*: is told each event."""
        chance = Chance(number)
        self.now = 1000.0
        self.shards = chance.one_of([1, 2, 2, 2, 3])
        self.hold = chance.one_of([HOLD, HOLD, 0.0])
        self.most = chance.one_of([UNLIMITED, UNLIMITED, UNLIMITED, 3])  # messages that may wait
        self.lasting = chance.one_of([[0.0], [0.0], [0.0], [0.0, 1.0, 30.0]])
        self.ttl = WEEK
        self.power = chance.often(50)
        self.cold = Chance(number >> 100).often(50)  # sessions stay unread when they are adopted
        self.server = ModelServer(always=self.power, strict=False)
        self.log = ModelLog()
        self.applications = Chance(number >> 110).one_of(APPLICATIONS)  # clients whose messages wait in logs
        self.passed = Chance(number >> 115).one_of([200, 3, 1])  # of each log at once
        self.workers: list[SimWorker] = []  # that live
        self.places: dict[str, Place] = {}
        self.moving: set[str] = set()  # clients whose sessions are on their way
        self.orphaned: dict[str, set[SimWorker]] = {}  # see `orphan()`
        self.cooling: dict[str, SimWorker] = {}  # of them, those whose sessions are being read again
        self.transfers: list[Transfer] = []
        self.takes: list[Take] = []
        self.holds: list[Hold] = []
        self.all_workers: list[SimWorker] = []
        self.ends: dict[tuple[str, int], float] = {}  # of publishes that expire
        self.late = False  # a session has moved while Redis was full
        self.forced = False  # a session was taken from a worker that stood still
        self._tell = tell
        self._checker = Checker()
        self._wills = number % 3 == 0  # half of the connections have one
        self._connections = 0
        self._owed_wills: set[str] = set()
        self._qos = chance.one_of([[1], [2], [1, 2], [1, 2]])
        window = chance.one_of([1, 2, 10, 100])
        self.few = number % 2 == 1  # packet ids
        _have_few_packet_ids(window if self.few else 0)
        lowest = chance.often(30)
        self.clients = [
            SimClient(self, "s1", "+", chance.one_of([1, 2, 2]), window, lowest),
            SimClient(self, "s2", "a", 2, window, lowest),
            SimClient(self, "p1", "", 0, window, lowest),
            SimClient(self, "p2", chance.one_of(["", "b"]), 2, window, lowest),
        ]
        self._subscribers = [client for client in self.clients if client.filter]
        self._publishers = self.clients[2:]
        self._drains = chance.often(25)  # Redis is full at the end, until all that is stored has left it
        for shard in range(self.shards):
            self._start(shard)
        for _ in range(3):
            self._settle(0.001)
        for client in self.clients:
            self._connect(client, chance)
        for _ in range(5):
            self._settle(0.001)

    def wall(self) -> float:
        """Unix time in seconds."""
        return WALL + self.now

    def note(self, event: Event) -> None:
        if self._tell is not None:
            self._tell(f"    {event}")
        self._checker.take(event)

    def violations(self) -> list[Violation]:
        return self._checker.violations

    def published(self, client: str, publish: Outgoing) -> None:
        """*publish* of *client* is owed to its subscribers until it ends, once it is answered."""
        if publish.ends:
            self.ends[client, publish.number] = publish.ends

    def owe_will(self, will: str, topic: str) -> None:
        """All subscribers of *topic* are to get *will*."""
        if will not in self._owed_wills:
            self._owed_wills.add(will)
            self.note(Died(self.now, will, topic))

    # What a registry and the routes would know.

    def places_for(self, topic: str) -> list[Place]:
        return [place for place in self.places.values() if _wants(place, topic)]

    def orphan(self, client: str, worker: SimWorker) -> None:
        """*worker* has ended, and had the filters of *client* in its routes, beside the worker that has its session.

        The others remember them until its sessions are adopted: the gates of publishes for them are closed.
        """
        self.orphaned.setdefault(client, set()).add(worker)

    def waits(self, place: Place, source: SimWorker) -> bool:
        """Whether a publish for *place*, from *source*, has to wait."""
        return place.blocked(source) or bool(self.orphaned.get(place.session.client_id))

    def moved(self, client: str, worker: SimWorker, session: Session) -> None:
        """*worker* has the session of *client* now, unless one that has ended had taken it before."""
        place = self.places.get(client)
        self.places[client] = Place(worker, session)
        if place is not None:
            self.places[client].others = place.others

    def claim(self, worker: SimWorker, link: Link) -> None:
        """The CONNECT of *link* asks for the session of its client."""
        client = link.client
        place = self.places.get(client)
        if client in self.moving:
            worker.close(link)
        elif place is None:
            if worker.store.takes_sessions(self.now):
                session = worker.begin(client)
                self.places[client] = Place(worker, session)
                worker.welcome(link, session, False)
            else:
                worker.close(link)
        elif place.worker is worker:
            worker.welcome(link, place.session, True)
        elif place.worker.dead or place.worker.stopped:
            self.forced |= not place.worker.dead
            Take(self, place.worker, worker, link)
        else:
            self.moving.add(client)
            self.transfers.append(Transfer(self, place.worker, worker, link))

    def adopted(self, worker: SimWorker) -> None:
        """*worker* has the sessions of all that had its shard before."""
        for client, session in worker.sessions.items():
            self.places[client] = Place(worker, session)
        for client, orphans in self.orphaned.items():
            self.orphaned[client] = {each for each in orphans if each.shard != worker.shard}
        for client in list(self.places):
            self.forget_if_gone(client)

    def warmed(self, worker: SimWorker, client: str, session: Session | None) -> None:
        """The session of *client* was read; None: another worker has taken it."""
        if client in self.cooling:
            del self.cooling[client]
            self.moving.discard(client)
            if session is not None:
                self.places[client] = Place(worker, session)

    def _cool(self, chance: Chance) -> None:
        """A session goes on in Redis alone, and is read again."""
        for client, place in self.places.items():
            worker = place.worker
            serves = worker.ready and not worker.dead and not worker.stopped
            if serves and client not in self.moving and worker.sessions.get(client) is place.session:
                if chance.often(70) and worker.cool(place.session):
                    self.moving.add(client)
                    self.cooling[client] = worker
                    return

    def forget_if_gone(self, client: str) -> None:
        """If no worker has the session of *client*, or can have it, there is none."""
        place = self.places.get(client)
        while place is not None and client not in self.moving:
            worker = place.worker
            if not worker.dead and not place.session.ended:
                return
            if worker.dead and not any(other.ready for other in self.workers if other.shard == worker.shard):
                return
            if place.others:
                place.worker = place.others.pop()
            elif self.orphaned.get(client):
                place.worker = min(self.orphaned[client], key=lambda each: each.number)
                return
            else:
                del self.places[client]
                return

    # Steps.

    def step(self, name: str, number: int) -> None:
        if self._tell is not None:
            self._tell(f"{self.now:.3f} {name} {number}")
        STEPS[name](self, Chance(number))
        self._go_on()

    def _publish(self, chance: Chance) -> None:
        client = chance.one_of(self._publishers)
        if client.up:
            for _ in range(chance.one_of([1, 1, 2, 3])):
                client.publish(chance.one_of(TOPICS), chance.one_of(self._qos), chance.one_of(self.lasting))
            self._turn_of(client, chance)

    def _read(self, chance: Chance) -> None:
        client = chance.one_of(self.clients)
        client.read()
        if chance.often(60):
            client.acknowledge(chance.one_of([1, 2, 100]))
            self._turn_of(client, chance)

    def _turn_of(self, client: SimClient, chance: Chance) -> None:
        """Perhaps the worker of *client* takes what was sent at once."""
        if chance.often(70):
            for worker in self.workers:
                if client.link in worker.links and not worker.stopped:
                    worker.serve()
                    worker.tick()

    def _come(self, chance: Chance) -> None:
        self._connect(chance.one_of(self.clients), chance)

    def _connect(self, client: SimClient, chance: Chance) -> None:
        if self.workers:
            link = client.connect()
            self._connections += 1
            if self._wills and self._connections % 2:
                link.will = self._connections
            chance.one_of(self.workers).accept(link)

    def _go(self, chance: Chance) -> None:
        chance.one_of(self.clients).disconnect(chance.often(50))

    def _turn(self, chance: Chance) -> None:
        """A slice of the loop of one worker."""
        running = [worker for worker in self.workers if not worker.stopped]
        if not running:
            return
        worker = chance.one_of(running)
        if chance.often(50):
            worker.take_lanes(chance.one_of([1, 100]))
        if chance.often(50):
            worker.wire.answer(self.now, chance.one_of([1, 3, 100]))
        if self.applications and chance.often(50):
            worker.hear_log(chance.one_of([1, 100]))
        worker.serve()
        worker.tick()

    def _log(self, chance: Chance) -> None:
        """The log stores some packs, and tells some workers."""
        if not self.workers:
            return
        worker = chance.one_of(self.workers)
        worker.link.store(chance.one_of([1, 2, 100]), chance.one_of([1, 3]))
        if chance.often(30):
            self.log.store_late(chance.one_of([1, 100]))
        if chance.often(60) and not worker.stopped:
            worker.hear_log(chance.one_of([1, 100]))
            worker.tick()

    def _end_carrier(self, chance: Chance) -> None:
        """The carrier ends, and the next one has all sent again that was not told to be stored."""
        for worker in self.workers:
            worker.link.store(chance.one_of([0, 1, 100]))
            worker.link.restart()
        if chance.often(50):
            self.log.late.clear()

    def _redis(self, chance: Chance) -> None:
        """Redis takes some commands, and answers some."""
        if not self.workers or self.server.down:
            return
        for left in list(self.server.former.values()):
            left.execute(chance.one_of([0, 3, 100]))
        worker = chance.one_of(self.workers)
        worker.wire.execute(chance.one_of([1, 3, 7, 100]))
        if chance.often(30):
            self.server.write()
        if chance.often(60) and not worker.stopped:
            worker.wire.answer(self.now, chance.one_of([1, 3, 100]))
            worker.tick()

    def _wait(self, chance: Chance) -> None:
        self.now += chance.one_of([0.0, HOLD, HOLD, 0.1, 0.2, 1.0])
        if chance.often(50):
            self._settle(0.0)

    def _rest(self, chance: Chance) -> None:
        for _ in range(chance.one_of([1, 3])):
            self._settle(0.001)

    def _cut(self, chance: Chance) -> None:
        """The connection of a worker to Redis ends: what was sent is executed, or not, or later."""
        running = [worker for worker in self.workers if not worker.stopped]
        if running:
            worker = chance.one_of(running)
            worker.wire.execute(chance.one_of([0, 2, 5, 100]))
            if chance.often(40):
                worker.wire.leave(self.now)
            else:
                worker.wire.cut(self.now)

    def _end_redis(self, chance: Chance) -> None:
        for worker in self.workers:
            worker.wire.execute(chance.one_of([0, 0, 4, 100]))
        if chance.often(30):
            self.server.write()
        self._restart_redis(self.power and chance.often(50))
        self.server.down = chance.often(50)

    def _restart_redis(self, power: bool) -> None:
        for worker in self.workers:
            worker.wire.cut(self.now)
        self.server.end(power)
        self.server.full = False

    def _fill(self, chance: Chance) -> None:
        self.server.full = chance.often(50)
        self.server.down = False

    def _kill(self, chance: Chance) -> None:
        if self.workers:
            self._end(chance.one_of(self.workers), chance)
            if chance.often(60):
                self._start_missing()

    def _end(self, worker: SimWorker, chance: Chance) -> None:
        """*worker* ends: what it has sent to Redis is executed, or not."""
        if not self.server.down:
            worker.wire.execute(chance.one_of([0, 3, 100]))
            for number, left in list(self.server.former.items()):
                if left.left_by is worker.wire:
                    left.execute(chance.one_of([0, 3, 100]))
                    del self.server.former[number]
        if self.applications:
            worker.link.end(chance.one_of([0, 1, 100]), chance.one_of([0, 1, 100]))
        worker.wire.close()
        worker.dead = True
        self.workers.remove(worker)
        for client in [each for each, where in self.cooling.items() if where is worker]:
            del self.cooling[client]
            self.moving.discard(client)
        for link in worker.links:
            link.open = False
            if link.session is not None:
                worker.wills.owe(link.session)
        for lane in worker.lanes.values():
            lane.end()
        for other in self.workers:
            for completion in other.unconfirmed.pop(worker, {}).values():
                other.abandon(completion)
        for transfer in list(self.transfers):
            transfer.lost(worker)
        for take in list(self.takes):
            take.lost(worker)
        for hold in list(self.holds):
            hold.lost(worker)

    def _stop(self, chance: Chance) -> None:
        if self.workers:
            chance.one_of(self.workers).stopped = True

    def _wake(self, chance: Chance) -> None:
        for worker in self.workers:
            worker.stopped = False
        self._start_missing()

    def _lose_power(self, chance: Chance) -> None:
        """The whole node."""
        if not self.power:
            return
        for worker in list(self.workers):
            self._end(worker, chance)
        self._restart_redis(True)
        self.server.down = False
        self._start_missing()

    def _start_missing(self) -> None:
        there = {worker.shard for worker in self.workers}
        for shard in range(self.shards):
            if shard not in there:
                self._start(shard)

    def _start(self, shard: int) -> None:
        worker = SimWorker(self, len(self.all_workers) + 1, shard)
        self.all_workers.append(worker)
        self.workers.append(worker)

    def _go_on(self) -> None:
        for transfer in list(self.transfers):
            transfer.go_on()

    def _settle(self, seconds: float) -> None:
        """Everybody does what there is to do."""
        self.now += seconds
        for worker in list(self.workers):
            if not self.server.down:
                worker.wire.execute()
            worker.link.store()
            if not worker.stopped:
                worker.wire.answer(self.now)
                worker.hear_log()
                worker.take_lanes()
                worker.serve()
                worker.tick()
        self.log.store_late(1)
        for left in list(self.server.former.values()):
            left.execute(2)  # a large transaction takes the server several rounds of its loop
        self._go_on()
        for client in self.clients:
            client.read()

    # The end.

    def finish(self) -> list[Violation]:
        """End all faults, let all clients come and have everything; what was wrong."""
        if self._drains:
            self._drain()
        self.server.down = self.server.full = False
        self._wake(Chance(0))
        if self._tell is not None:
            self._tell(f"{self.now:.3f} the end")
        chance = Chance(len(self.all_workers))
        confirmed = False
        for _ in range(QUIET):
            quiet = self._have_all_come(chance)
            self._settle(0.0)
            quiet = quiet and all(client.up and not client.outgoing and not client.owed for client in self.clients)
            idle = all(worker.idle() for worker in self.workers)
            if idle and quiet and not self.transfers and not self.takes:
                if confirmed:
                    break
                confirmed = True
                for worker in self.workers:
                    worker.store.commit.confirm(_nothing)  # or it would not know what was taken from it
            self._pass_time()
        else:
            self._found(STUCK, ", ".join(self._unfinished()))
        self._judge()
        return [each for each in self._checker.violations if not self._is_excused(each)]

    def _drain(self) -> None:
        """Redis is full, and all clients come: what is stored has to leave, also where a worker has ended."""
        if self._tell is not None:
            self._tell(f"{self.now:.3f} Redis is full")
        self.server.down = False
        self.server.full = True
        self._wake(Chance(0))
        chance = Chance(len(self.all_workers))
        for _ in range(QUIET):
            come = self._have_all_come(chance)
            self._settle(0.0)
            if come and not self._stored():
                return
            self._pass_time()
        self._found(STUCK, f"while Redis was full: {self._stored()}")

    def _stored(self) -> list[bytes]:
        """The keys of messages of all sessions."""
        found: list[bytes] = []
        for client, place in self.places.items():
            name = client.encode()
            keys = KEYS.sessions(KEYS.slice_of(name), place.worker.incarnation)
            found += [key for key in (keys.queues + name, keys.released + name) if key in self.server.values]
        return found

    def _have_all_come(self, chance: Chance) -> bool:
        """Have all clients connect and acknowledge everything; whether all that have a session had connected."""
        there = True
        for client in self.clients:
            if client.link is None:
                self._connect(client, chance)
                there = there and client.name not in self.places
            client.acknowledge(100)
        return there

    def _pass_time(self) -> None:
        if not any(worker.wire.busy() for worker in self.workers):
            self.now = max(self.now, min(self.now + 1.0, *[worker.due for worker in self.workers]))

    def _is_excused(self, violation: Violation) -> bool:
        """A message that a full queue has dropped may come late, when its publisher sends it again or after a crash.
        One that has expired may come late when its publisher sends it again.

        What is not stored of a session that moves while Redis is full comes late, as its publisher sends it again. Such
        a session begins its packet ids anew if none of its messages is stored: also those of what its full queue has
        dropped, which the client may have received at QoS 2. With few packet ids they soon come round to those, too.
        """
        if violation.kind == PACKET_ID_REUSED:
            return self.most != UNLIMITED and (self.late or self.few)
        late = self.most != UNLIMITED or self.late or violation.message in self.ends
        return violation.kind == REORDERED and late

    def _unfinished(self) -> list[str]:
        clients = [
            f"{client.name} (up {client.up}, {len(client.outgoing)} unanswered)"
            for client in self.clients
            if not client.up or client.outgoing
        ]
        workers = [f"worker {worker.number} (ready {worker.ready})" for worker in self.workers if not worker.idle()]
        return [*clients, *workers, f"{len(self.transfers)} transfers", f"{len(self.takes)} takes"]

    def _found(self, kind: str, what: str, message: Message | None = None) -> None:
        self._checker.violations.append(Violation(kind, self.now, "", what, message))

    def _judge(self) -> None:
        missing = [
            (client, message)
            for client, message in self._checker.missing()
            if self.now < self.ends.get(message, self.now + 1.0)
        ]
        dropped = 0
        for worker in self.all_workers:
            dropped += worker.counters.dropped_by_reason["queue_full"]
        if len(missing) > dropped:
            for client, message in missing:
                self._found(LOST, f"{message} was acknowledged, and never came to {client}", message)
        owners = {place.session.client_id.encode(): place.worker.incarnation for place in self.places.values()}
        ended = self.forced or len(self.workers) < len(self.all_workers)
        for what in left_behind(self.server, owners, {worker.incarnation for worker in self.workers}, ended):
            self._found(LEFT, what)
        for worker in self.workers:
            budget = worker.budget
            if budget.used or budget.messages:
                what = f"worker {worker.number} counts {budget.messages} messages, {budget.used} bytes"
                self._found(LEFT, what)
            for session in worker.sessions.values():
                if session.inflight() or session.waiting():
                    self._found(LEFT, f"{session.client_id}: {session.inflight()} in flight, {session.waiting()} wait")
            if worker.coming or worker.leaving or any(worker.unconfirmed.values()):
                self._found(LEFT, f"worker {worker.number} waits for others")


def left_behind(server: ModelServer, owners: dict[bytes, bytes], workers: set[bytes], ended: bool) -> list[str]:
    """What is in *server*, where all messages were delivered, and belongs to no session. *owners*: by client id.

    *ended*: a worker has, or a session was taken from it, and it may not have stored that a publish is released.
    """
    found = []
    records = {}
    for client, incarnation in owners.items():
        keys = KEYS.sessions(KEYS.slice_of(client), incarnation)
        records[keys.records + client] = (keys.index, client)
    for key, value in server.values.items():
        kind = key.split(b":")[2] if b"{" in key else key.split(b":")[1]
        if kind == b"session":
            if key not in records:
                found.append(f"the record {key!r}")
            elif not ended and any(field[:2] == b"\0i" for field in value):
                found.append(f"tokens of publishes that are released in {key!r}")
        elif kind == b"sessions":
            found += [what for client, each in value.items() if (what := _misleading(server, key, client, each))]
            extra = value.keys() - {client for index, client in records.values() if index == key}
            if extra:
                found.append(f"{extra} in the index {key!r}")
        elif kind in (b"fence", b"commit"):
            if key.split(b":")[-1] not in workers and key not in server.ends:
                found.append(f"{key!r} of a worker that has ended, for ever")
        elif kind in (b"queue", b"released", b"damaged"):
            found.append(f"{key!r}: {value!r}")
    for key, (index, client) in records.items():
        if key not in server.values or client not in server.values.get(index, ()):
            found.append(f"nothing under {key!r}, or not in its index, of a session that is there")
    if set(server.values[KEYS.durable_owners(NODE)]) != workers:
        found.append(f"owners that have ended: {server.values[KEYS.durable_owners(NODE)]}")
    return found


def _misleading(server: ModelServer, index: bytes, client: bytes, value: bytes) -> str:
    """What is wrong with *value*, which *index* has of *client*; "" if it is right, or tells to read the session."""
    fields = server.values.get(index.replace(b":sessions:", b":session:") + b":" + client)
    if value == READ or fields is None:
        return ""
    try:
        wanted = read_record([part for field in fields.items() for part in field]).index_value()
    except DamagedRecord:  # its client is connected, for what is stored
        wanted = READ
    right = wanted[4:] == value[4:] and abs(deadline_of(wanted) - deadline_of(value)) <= 1
    return "" if right else f"{index!r} says {value!r} of {client!r}, and its record {wanted!r}"


def _nothing() -> None:
    pass


def _wants(place: Place, topic: str) -> bool:
    return any(filter == b"+" or matches(filter.decode(), topic) for filter in place.session.subscriptions)


STEPS: Final[dict[str, Callable[[World, Chance], None]]] = {
    "publish": World._publish,
    "read": World._read,
    "turn": World._turn,
    "redis": World._redis,
    "log": World._log,
    "end carrier": World._end_carrier,
    "wait": World._wait,
    "rest": World._rest,
    "come": World._come,
    "go": World._go,
    "cut": World._cut,
    "end redis": World._end_redis,
    "fill": World._fill,
    "kill": World._kill,
    "stop": World._stop,
    "wake": World._wake,
    "cool": World._cool,
    "lose power": World._lose_power,
}
