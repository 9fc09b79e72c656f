# A worker of the simulation: the store, the sessions and the queues are those of Weir, what connects them is not.
#
# Sockets, the reactor and the protocol handlers are left out, as are routes and the mesh. What they would do for stored
# sessions is done here, in the fewest words: publishes are given their tokens and wait for their receivers, at this
# worker or another one, and their publishers are answered in order; sessions come from the store, rest and end.
# transfer.py has how they move.
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.config.schema import Overload
from broker.delivery.completion import AnswerQueue, Completion, CompletionListener
from broker.delivery.outbox import Outbox
from broker.metrics.counters import Counters
from broker.metrics.latency import Latencies
from broker.mqtt.packets import CONNECT, PUBACK, PUBLISH, PUBREC, PUBREL, SUBSCRIBE, V311
from broker.overload.gate import Gate
from broker.protocol.publish_answers import PUBACK_2, PUBREC_2, keep_unanswered, take_unanswered
from broker.session.limits import SessionLimits
from broker.session.message import NEVER, RELEASED, Message
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.store.durable.adoption import AdoptedSession
from broker.store.durable.application_logs import LogSettings
from broker.store.durable.commit_delays import Holds
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.group_queue import is_pending_will
from broker.store.durable.index import READ, index_value
from broker.store.durable.record import SessionRecord
from broker.store.durable.shared_bodies import SharedBodies
from broker.store.durable.store import DurableStore
from broker.store.durable.store_gate import StoreGate
from broker.store.redis.address import RedisAddress
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import CommandPipeline
from broker.worker_id import WorkerId
from tests.session.receiver import PLENTY
from tests.store.durable.model import ModelRedis
from tests.store.durable.model_log import ModelLink
from tests.tools.faults.durable.history import NO_SUBSCRIBERS
from tests.tools.simulate.link import Crossed, Given, Lane, Link, Mark, Outgoing
from tests.tools.simulate.wills import SimWills, will_of

if TYPE_CHECKING:
    from tests.tools.simulate.world import World

NODE: Final = "node"
KEYS: Final = Keys("weir")
ADDRESS: Final = RedisAddress(path="/model")
OVERLOAD: Final = Overload()
LATENCIES: Final = Latencies()
EXPIRY: Final = 3600  # seconds
MANY: Final = 1 << 30


class Silent:
    """A log that nobody reads."""

    def info(self, event: str, **facts: object) -> None:
        pass

    warning = error = info


class Unpaused:
    """A `SourcePause` of publishers that are paused for what needs long, and are read all the same."""

    def pause(self, source: Outbox) -> None:
        pass

    def resume(self, source: Outbox) -> None:
        pass


LOG: Final = Silent()
UNPAUSED: Final = Unpaused()


class Place:
    """Where a session is: its worker, or the dead worker that had it. *session*: as it is, or was, there."""

    def __init__(self, worker: "SimWorker", session: Session) -> None:
        self.worker = worker
        self.session = session
        self.others: list[SimWorker] = []  # workers that have ended and may have it, as they had begun to take it
        self.waits_for: set[SimWorker] = set()  # workers that do not know yet that it was taken from them

    def blocked(self, source: "SimWorker") -> bool:
        """Whether publishes for it, from *source*, have to wait, as another worker has it, or will have it."""
        return self.worker.dead or self.session.ended or source in self.waits_for


class SimWorker:
    """Also a `SessionOwner`."""

    def __init__(self, world: "World", number: int, shard: int) -> None:
        self.number = number
        self.shard = shard
        self.incarnation = b"%016x" % number
        self.ready = False  # it serves clients
        self.stopped = False
        self.dead = False
        self.sessions: dict[str, Session] = {}
        self.cold: dict[bytes, bytes] = {}  # those that are to be read, by client id: of which former owner, or b""
        self.leaving: dict[str, Session] = {}  # those that are moved to other workers
        self.coming: dict[str, Session] = {}  # those that are moved to this worker
        self.links: list[Link] = []
        self.lanes: dict[SimWorker, Lane] = {}  # from other workers
        self.unconfirmed: dict[SimWorker, dict[Crossed, Completion]] = {}
        self.confirmed: list[tuple[Crossed, bool]] = []  # by other workers; false: it may be lost
        self.due = 0.0
        self.counters = Counters()
        self.budget = MessageBudget(PLENTY)
        self.wire = ModelRedis(world.server)
        self._world = world
        self._all_known = False  # all sessions are that it is to adopt
        self._reading: set[bytes] = set()  # of those that are cold
        self._held: dict[bytes, list[Message]] = {}  # messages for them, in their order
        self._unsent: set[bytes] = set()  # of those, the ones of which nothing that waits was sent
        self._late: set[bytes] = set()  # and those for which something may come late
        self._links_of: dict[Outbox, Link] = {}
        self._limits = SessionLimits(
            inflight=65535, pending=9, queue=world.most, queue_bytes=PLENTY, budget=self.budget
        )
        commands = CommandPipeline(self.wire, ADDRESS, f"simulated-{number}", LOG, ends_former=True)
        me = WorkerId(NODE, shard, number)
        commit = GroupCommit(
            commands,
            fence=KEYS.fence(self.incarnation),
            commit_number=KEYS.commit_number(self.incarnation),
            wall=world.wall,
            holds=Holds(world.hold),
            gate=StoreGate(Gate(OVERLOAD, "store", 1, 0.0), lambda gate, now: None),
            counters=self.counters,
            bodies=SharedBodies(KEYS, self.incarnation, world.ttl),
        )
        self.store = DurableStore(
            commands, commit, KEYS, me, world.shards, self.budget, world.wall, world.ttl, lambda when: None
        )
        commit.fenced = self.taken
        self.link = ModelLink(world.log, number)
        if world.applications:
            self.store.keep_logs(self.link, Gate(OVERLOAD, "log", 2, 0.0), LogSettings(most=world.passed))
        self.wills = SimWills(world, self)
        commands.start(world.now)
        self.store.serve(self, world.now)

    # What a slice of its loop does.

    def serve(self) -> None:
        """Take what clients have sent."""
        if self.ready:
            for link in list(self.links):
                self._serve(link)

    def take_lanes(self, most: int = MANY) -> None:
        """Take up to *most* of what each other worker has sent, and what they confirm."""
        confirmed, self.confirmed = self.confirmed, []
        for item, certain in confirmed:
            completion = self.unconfirmed.get(item.target, {}).pop(item, None)
            if completion is None:
                continue  # that worker has ended
            if certain:
                completion.settle(self._world.now)
            else:
                self.abandon(completion)
        for lane in list(self.lanes.values()):
            for _ in range(min(most, len(lane.items))):
                self._take(lane.take())

    def hear_log(self, most: int = MANY) -> None:
        """Take up to *most* of each that the log has to tell."""
        link, now = self.link, self._world.now
        link.answer(most)
        link.tell(now, most)
        link.give(now, most)

    def tick(self) -> None:
        self._warm()
        due = self.wills.tick() if self.ready else float("inf")
        self.due = min(due, self.store.tick(self._world.now))

    def idle(self) -> bool:
        """Whether it has nothing to do."""
        if self.confirmed or any(lane.items for lane in self.lanes.values()) or not self.ready:
            return False
        if self.cold or not self.store.adoption.finished():
            return False
        logs = self.store.logs
        if not self.link.idle() or (logs is not None and logs.has_work()):
            return False
        return self.store.commit.idle() and not self.store.waits() and not self.wire.busy() and self.wills.idle()

    # Connections.

    def accept(self, link: Link) -> None:
        self.links.append(link)
        self._links_of[link.outbox] = link

    def link_of(self, session: Session) -> Link | None:
        return None if session.outbox is None else self._links_of.get(session.outbox)

    def close(self, link: Link) -> None:
        """End the connection; its session rests."""
        if not link.open:
            return
        link.open = False
        self.links.remove(link)
        del self._links_of[link.outbox]
        session, link.session = link.session, None
        if session is None:
            return
        session.detach()
        if link.answers is not None:
            keep_unanswered(session, link.answers.discard())
            link.answers = None
        self.wills.publish(session)
        self.rest(session)

    def rest(self, session: Session) -> None:
        """It has no connection."""
        storage = session.storage
        assert storage is not None
        storage.store_head(EXPIRY, None, False)
        wanted = [key for key, each in session.subscriptions.items() if each.qos]
        storage.store_index(index_value(self._world.wall() + EXPIRY, wanted))

    def _serve(self, link: Link) -> None:
        inbox = link.inbox
        while inbox and link.open and not link.waits:
            kind, packet_id, publish, dup = inbox[0]
            session = link.session
            if kind == CONNECT:
                inbox.popleft()
                link.waits = True
                self._world.claim(self, link)
                continue
            assert session is not None
            if kind == PUBLISH:
                assert publish is not None
                if not self._publish(link, session, packet_id, publish, dup):
                    break
                inbox.popleft()
                continue
            inbox.popleft()
            if kind == SUBSCRIBE:
                self._subscribe(link, session)
            else:
                self._acknowledge(session, kind, packet_id)
        self._read_ahead(link)
        if link.left and not link.waits:
            self.close(link)

    def _acknowledge(self, session: Session, kind: int, packet_id: int) -> None:
        if kind == PUBACK:
            session.puback(packet_id, self._world.now)
        elif kind == PUBREC:
            session.pubrec(packet_id, 0, self._world.now)
        elif kind == PUBREL:
            session.pubrel(packet_id)
        else:
            session.pubcomp(packet_id, self._world.now)

    def _read_ahead(self, link: Link) -> None:
        """Take the acknowledgements behind a publish that waits, as protocol/read_ahead.py does."""
        session, inbox = link.session, link.inbox
        if session is None or not link.open or not inbox or inbox[0][0] != PUBLISH:
            return
        for packet in [each for each in inbox if each[0] not in (CONNECT, PUBLISH, SUBSCRIBE)]:
            inbox.remove(packet)
            self._acknowledge(session, packet[0], packet[1])

    def _subscribe(self, link: Link, session: Session) -> None:
        storage = session.storage
        assert storage is not None
        subscription = Subscription(session, link.filter, b"")
        subscription.qos = link.qos
        session.subscriptions[link.filter] = subscription
        storage.subscribed(subscription)
        link.waits = True
        storage.when_stored(partial(self._subscribed, link))

    def _subscribed(self, link: Link) -> None:
        link.waits = False
        if link.open:
            link.outbox.answer(b"\x90\x03\x00\x01" + bytes((link.qos,)))

    # Publishes.

    def _publish(self, link: Link, session: Session, packet_id: int, publish: Outgoing, dup: bool) -> bool:
        """Take a publish, as protocol/publishing.py does; false if it has to wait."""
        places = self._world.places_for(publish.topic)
        if any(self._world.waits(place, self) for place in places):
            return False  # as a gate is closed while a worker is dead whose sessions nobody has adopted
        storage = session.storage
        assert storage is not None
        if places and publish.qos == 2 and not session.holds(packet_id) and not storage.may_receive(packet_id, dup):
            link.waits = True
            storage.when_stored(partial(self._goes_on, link))
            return False
        now, qos, identifier = self._world.now, publish.qos, packet_id.to_bytes(2, "big")
        answer = (PUBACK_2 if qos == 1 else PUBREC_2) + identifier
        if qos == 2 and session.holds(packet_id):
            unanswered = take_unanswered(session, packet_id)
            if unanswered is None or not unanswered.abandoned:
                self._answer(link, unanswered, answer)
                return True
            assert session.incoming is not None
            session.incoming.discard(packet_id)
        message = Message(publish.topic.encode(), publish.payload, qos, False, b"", publish.ends or NEVER)
        if qos == 2:
            if places:
                storage.receive(packet_id, dup, message)
            session.receive(packet_id)
        self.deliver(message, places, now)
        if not places:
            answer = bytes((answer[0], 3)) + identifier + bytes((NO_SUBSCRIBERS,))
        self._answer(link, message.completion, answer)
        return True

    def _goes_on(self, link: Link) -> None:
        link.waits = False

    def deliver(self, message: Message, places: list[Place], now: float) -> None:
        crossing: dict[SimWorker, Crossed] = {}
        for place in places:
            worker = place.worker
            if worker is self:
                _offer(place.session, message, now)
            elif worker in crossing:
                crossing[worker].clients.append(place.session.client_id)
            else:
                completion = message.hold()
                crossed = Crossed(self, message.topic, message.payload, message.qos, message.expires, completion.token)
                crossed.clients.append(place.session.client_id)
                crossing[worker] = crossed
                self.unconfirmed.setdefault(worker, {})[crossed] = completion
                crossed.target = worker
        for worker, crossed in crossing.items():
            worker.lane_from(self).write(crossed)

    def lane_from(self, worker: "SimWorker") -> Lane:
        lane = self.lanes.get(worker)
        if lane is None:
            lane = self.lanes[worker] = Lane()
        return lane

    def mark(self) -> Mark:
        """What other workers have sent to this one so far."""
        return Mark(list(self.lanes.values()))

    def _answer(self, link: Link, completion: Completion | None, answer: bytes) -> None:
        if link.answers is None:
            link.answers = AnswerQueue(link.outbox, self.counters, LATENCIES, MANY, UNPAUSED)
        link.answers.add(completion, answer, self._world.now, self._world.now)

    def abandon(self, completion: Completion | None) -> None:
        """A receiver may have lost a publish: its publisher is not answered, and publishes again."""
        link = self._abandon(completion)
        if link is not None:
            self.close(link)

    def _abandon(self, completion: Completion | None) -> Link | None:
        """As `abandon()`; the connection of the publisher that is to be closed."""
        if completion is None or completion.abandoned:
            return None
        completion.abandoned = True
        outbox = None if completion.queue is None else completion.queue.abandoned(self._world.now)
        return None if outbox is None else self._links_of.get(outbox)

    def let_go_of(self, worker: "SimWorker") -> None:
        """A session was taken from *worker*: have all come again that it has not confirmed."""
        for completion in list(self.unconfirmed.get(worker, {}).values()):
            self.abandon(completion)

    def drop_early(self, client: str) -> None:
        """The worker has ended that was to give the session of *client*: what has come for it here comes again."""
        storage = self.coming[client].storage
        assert storage is not None
        early = storage.disown()
        self.store.expect_again(client.encode())
        self._refuse(client)
        for message in early:
            self.abandon(message.as_published().completion)

    def _refuse(self, client: str) -> None:
        """What is on its way here for the session of *client* is not for the one that it has here next."""
        for lane in self.lanes.values():
            for item in lane.items:
                if isinstance(item, Crossed) and client in item.clients:
                    item.clients.remove(client)
                    item.refused = True

    def _take(self, item: Crossed | Given) -> None:
        if isinstance(item, Given):
            item.transfer.given(item.state)
            return
        message = Message(item.topic, item.payload, item.qos, False, b"", item.expires)
        if item.token:
            completion = message.completion = Completion()
            completion.token = item.token
        certain = not item.refused
        for client in item.clients:
            session = self.sessions.get(client) or self.leaving.get(client) or self.coming.get(client)
            if session is not None:
                _offer(session, message, self._world.now)
            elif client.encode() in self.cold:
                message.hold()
                self._held.setdefault(client.encode(), []).append(message)
        found = message.completion
        if not certain or found is None or not found.pending:
            item.source.confirmed.append((item, certain))
        else:
            found.queue = Confirmation(item)

    # Sessions.

    def begin(self, client: str) -> Session:
        """A new one."""
        record = self.store.begin(client.encode(), client in self._world.applications)
        queue = record.queue() if record.application else None
        session = Session(client, self._limits, self.counters, queue)
        session.storage = record
        return self._keep(session)

    def _keep(self, session: Session) -> Session:
        session.expiry = EXPIRY
        self.sessions[session.client_id] = session
        return session

    def expect(self, client: str, incoming: Callable[[Session], None]) -> Session:
        """One that another worker has still; *incoming* says what it knows of the publishes of its client."""
        record, queue = self.store.expect(client.encode(), client in self._world.applications)
        session = Session(client, self._limits, self.counters, queue)
        session.storage = record
        session.expiry = EXPIRY
        session.limit(self._limits)
        incoming(session)
        self.coming[client] = session
        return session

    def arrived(self, client: str) -> Session:
        """What was expected is here."""
        return self._keep(self.coming.pop(client))

    def restore(self, found: AdoptedSession) -> Session:
        """A session that was read."""
        session = Session(found.client_id, self._limits, self.counters, found.record.present_queue())
        session.limit(self._limits)
        session.storage = found.record
        session.restore(dict.fromkeys(found.record.released_ids(), RELEASED))
        for subscription in found.stored.subscriptions(session):
            session.subscriptions[subscription.key()] = subscription
        session.will = found.stored.will
        self.wills.restored(session)
        return self._keep(session)

    def welcome(self, link: Link, session: Session, present: bool) -> None:
        """Give *link* its session, and answer its CONNECT."""
        former = self.link_of(session)
        if former is not None:
            self.close(former)
        link.waits = False
        if not link.open:
            self.rest(session)
            return
        storage = session.storage
        assert storage is not None
        storage.store_head(EXPIRY, None, True)
        self.wills.set(session, will_of(link))
        link.session = session
        session.attach(link.outbox, V311, link.window, 0, 0)
        link.outbox.answer(b"\x20\x02" + bytes((present, 0)))
        session.resume(self._world.now)

    def evict(self, session: Session) -> None:
        """Another worker has it."""
        link = self.link_of(session)
        if link is not None:
            self.close(link)
        storage = session.storage
        if session.ended or storage is None:
            return
        links = [self._abandon(message.as_published().completion) for message in storage.disown()]
        self._refuse(session.client_id)
        session.end()
        storage.end()
        for sessions in (self.sessions, self.leaving):
            if sessions.get(session.client_id) is session:
                del sessions[session.client_id]
        self._world.forget_if_gone(session.client_id)
        for link in links:
            if link is not None:
                self.close(link)

    # What the store tells.

    def has(self, client_id: str) -> bool:
        client = client_id.encode()
        return client_id in self.sessions or client in self.cold or self.wills.has(client)

    def adopt(self, session: AdoptedSession, now: float) -> None:
        if is_pending_will(session.client_id.encode()):
            self.wills.adopt(session, now)
        else:
            self.restore(session)

    def expect_cold(self, sessions: int) -> None:
        pass

    def keep_cold(self, entries: list[bytes], incarnation: bytes) -> list[bytes]:
        """In some worlds sessions stay unread until all are known. Then each is read where it is, before they serve."""
        if not self._world.cold:
            return entries[::2]
        found = dict(zip(entries[::2], entries[1::2], strict=True))
        unread = [client for client, value in found.items() if value == READ]
        for client in found.keys() - unread:
            self.cold[client] = b"" if incarnation == self.incarnation else incarnation
        return unread

    def renamed(self, clients: list[bytes]) -> None:
        for client in clients:
            if client in self.cold:
                self.cold[client] = b""

    def adopted(self, now: float) -> None:
        self._all_known = True

    def _warm(self) -> None:
        """Read the next session that is cold; serve once all are here that were adopted."""
        adoption, now = self.store.adoption, self._world.now
        for client, former in self.cold.items():
            if client not in self._reading and not adoption.renames(client):
                self._reading.add(client)
                unsent, late = client in self._unsent, client in self._late
                self.store.cold_reads.load(client, former, unsent, late, partial(self._read, client), now)
                break
        if self._all_known and not self.cold and not self.ready:
            self.ready = True
            self._world.adopted(self)

    def _read(self, client: bytes, outcome: int, found: AdoptedSession | None, now: float) -> None:
        del self.cold[client]
        self._reading.discard(client)
        self._unsent.discard(client)
        self._late.discard(client)
        session = None if found is None else self.restore(found)
        for message in self._held.pop(client, []):
            if session is not None:
                _offer(session, message, now)
                message.settle(now)
            elif message.completion is not None and message.completion.queue is not None:
                message.completion.queue.abandoned(now)
        self._world.warmed(self, client.decode(), session)

    def cool(self, session: Session) -> bool:
        """Forget all of *session* that is stored, and have it read again; false if that may not be."""
        record, client = session.storage, session.client_id.encode()
        assert isinstance(record, SessionRecord)
        if session.outbox is not None or session.inflight() or record.index_known() == READ:
            return False
        if session.incoming is not None and session.incoming.count:
            return False
        queue = record.present_queue()
        if not record.all_stored():
            if queue is not None:
                queue.tidy()
            return False
        if queue is None or not queue.sent_before():
            self._unsent.add(client)
        if queue is not None and queue.expects_late():
            self._late.add(client)
        record.leave()
        session.ended = True
        del self.sessions[session.client_id]
        self.cold[client] = b""
        return True

    def taken(self, clients: list[bytes], now: float) -> None:
        for client in clients:
            self.store.taken(client)
            client_id = client.decode()
            place = self._world.places.get(client_id)
            if place is not None:
                place.waits_for.discard(self)
            session = self.sessions.get(client_id) or self.leaving.get(client_id)
            if session is not None:
                self.wills.publish(session)
                self.evict(session)

    def damaged(self, client_id: str, why: str, here: bool, now: float) -> None:
        raise AssertionError(f"what is stored of {client_id} is damaged: {why}")


class Confirmation(CompletionListener):
    """Tells the worker that has sent a publish when its receivers here are done with it."""

    def __init__(self, item: Crossed) -> None:
        self._item = item

    def advance(self, now: float) -> None:
        self._item.source.confirmed.append((self._item, True))

    def abandoned(self, now: float) -> Outbox | None:
        self._item.source.confirmed.append((self._item, False))
        return None


def _offer(session: Session, message: Message, now: float) -> None:
    (subscription,) = session.subscriptions.values()
    lower = subscription.qos < message.qos
    session.offer(message.variant(subscription.qos, False, b"") if lower else message, now)
