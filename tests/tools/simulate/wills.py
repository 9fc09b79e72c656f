# Wills of the simulation: those of one worker. They are published as protocol/session_lifecycle.py does it, at once.
#
# A will is owed to all subscribers if it was stored for certain when the connection of its client, or its worker, had
# its end. Any will comes once. Its number is the name of its publisher for the judge.
from typing import TYPE_CHECKING, Final, cast

from broker.delivery.completion import Completion
from broker.mqtt.packets import Will as WillFields
from broker.protocol.pending_wills import PendingWill, PendingWills
from broker.protocol.timers import PENDING_WILL, WILL, Timers
from broker.session.message import Message
from broker.session.principal import Principal
from broker.session.reserve import Reserve
from broker.session.session import Session
from broker.session.will import Will
from tests.session.receiver import PLENTY

if TYPE_CHECKING:
    from tests.tools.simulate.link import Link
    from tests.tools.simulate.worker import SimWorker
    from tests.tools.simulate.world import World

TOPICS: Final = (b"a", b"b")
DUE: Final = 100  # timers in one slice


def will_of(link: "Link") -> Will | None:
    """The will of the connection *link*, if it has one."""
    number = link.will
    return Will(WillFields(TOPICS[number % 2], b"w%d 1" % number, 1 + number // 2 % 2)) if number else None


class SimWills:
    def __init__(self, world: "World", worker: "SimWorker") -> None:
        self.reserve = Reserve(PLENTY)
        self._world = world
        self._worker = worker
        self._timers = Timers()
        self._pending = PendingWills(worker.store, self._send, self._timers, self.reserve)
        self.adopt = self._pending.adopt
        self.has = self._pending.has
        self._again: list[tuple[str, Completion]] = []  # by topic: a receiver has no worker now

    def idle(self) -> bool:
        return not self.reserve.used

    def set(self, session: Session, will: Will | None) -> None:
        """*session* has a connection with *will*, or none. One that is overdue is published."""
        storage = session.storage
        assert storage is not None
        if session.will is not None:
            self._take(session.will)
            self._pending.publish(session.will, session, True, self._world.now)
        session.will = will
        storage.store_will(will)

    def publish(self, session: Session) -> None:
        """*session* has lost its connection."""
        will, storage = session.will, session.storage
        if will is None or storage is None:
            return
        self.owe(session)
        session.will = None
        self._take(will)
        self._pending.publish(will, session, False, self._world.now)
        storage.store_will(None)

    def owe(self, session: Session) -> None:
        """*session* loses its connection, or its worker: is its will owed?"""
        if session.will is not None and session.storage is not None and session.storage.has_stored_will():
            self._world.owe_will(session.will.fields().payload.split()[0].decode(), session.will.topic.decode())

    def hold(self, session: Session) -> PendingWill | None:
        """*session* was taken from a worker that publishes its will, unless it ends before: `end_hold()` follows."""
        will, storage = session.will, session.storage
        if will is None or storage is None:
            return None
        session.will = None
        self._take(will)
        held = self._pending.hold(will, session)
        storage.store_will(None)
        return held

    def end_hold(self, will: PendingWill, published: bool) -> None:
        if published:
            self._pending.ended(will)
        else:
            self._pending.again(will, self._world.now)

    def found(self, session: Session, will: Will | None) -> None:
        """*will* was read with *session*, which was on its way here from a worker that has ended."""
        if will is not None and session.will is None and session.storage is not None:
            self._take(will)
            self._pending.publish(will, session, True, self._world.now)
            session.storage.store_will(None)

    def restored(self, session: Session) -> None:
        """*session* was read, or is still here, without a connection."""
        if session.will is not None:
            self._timers.set(self._world.now, WILL, session)

    def tick(self) -> float:
        """Do what is due; when there will be something."""
        now, world = self._world.now, self._world
        again, self._again = self._again, []
        for topic, completion in again:
            if any(place.blocked(self._worker) for place in world.places_for(topic)):
                self._again.append((topic, completion))
            else:
                self._worker.abandon(completion)
        for kind, whom in self._timers.pop_due(now, DUE):
            if kind == PENDING_WILL:
                self._pending.publish_again(cast(PendingWill, whom), now)
            else:
                session = cast(Session, whom)
                if self._worker.sessions.get(session.client_id) is session and session.outbox is None:
                    self.publish(session)
        return self._timers.next_due(now)

    def _take(self, will: Will) -> None:
        self.reserve.take(will.held)

    def _send(
        self, message: Message, client_id: str, principal: Principal, session: Session | None, since: float, now: float
    ) -> None:
        topic = message.topic.decode()
        places = self._world.places_for(topic)
        reached = [place for place in places if not place.blocked(self._worker)]
        if len(reached) < len(places):
            self._again.append((topic, message.hold()))
        self._worker.deliver(message, reached, now)
