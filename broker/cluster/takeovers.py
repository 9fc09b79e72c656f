# Takeovers: a session goes from the worker that has it to the one that its client has come to.
#
# The new worker N asks the owner O, over the control lane. O closes the connection (0x8E), waits until every peer has
# processed what it accepted from that client (or the client's next message could overtake its last), and sends what the
# session holds in chunks over the data lane (moving.py). Once N has subscribed it, messages could come at both places:
#
#   N  to all:    SWITCH. It comes behind what N has told of its interest, so each worker knows that already
#   X  to N, O:   MARK, on the data lane: what X sent before it is for the session at O, what it sends after it for the
#                 one at N; both keep a filter (session/origin.py) for as long as this lasts. N and O are an X, too
#   O  all marks: nothing comes any more: the session leaves its routes there, and what came late is sent, and the end
#   N  all marks, and the end: the session is the client's. TAKEN, and O forgets it
#
# So every message comes once, and in the order of its publisher. A worker that dies counts as one that has marked: all
# it sent has come. One that joins is told to mark. If N dies, O keeps the session; if N cannot wait for it, it ends; if
# O dies before the end has come, there is none.
# With its answer O tells what credits the client has left, also if there is no session to be handed over.
# A worker that is to be replaced offers its sessions: who is offered one claims it as a client that comes back would.
# While Redis is away nobody knows who has a session, and all are asked: the claim with the greater epoch wins.
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from broker.cluster import wire
from broker.cluster.barriers import Barriers
from broker.cluster.owner import Owner
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.cluster.takeover import HANDOVER_PATIENCE, OnTakeover, TakeoverResult
from broker.mqtt.packets import Will
from broker.overload.credits import UNKNOWN
from broker.protocol.session_transfer import SessionTransfer
from broker.reasons import CloseReason
from broker.session.origin import TransferFilter
from broker.session.session import Session
from broker.session.transfer.session_export import SessionExport
from broker.session.transfer.session_import import SessionImport, SessionImportError
from broker.store.sessions import Claimant
from broker.worker_id import WorkerId

NOTHING: Final = 0  # what an answer says: there is no session here, or there is none any more
COMES: Final = 1
SUPERSEDED: Final = 2  # it is held here with a later epoch

ASK: Final = struct.Struct(">QQB")  # number, epoch, whether the session is wanted; then the client id
ANSWER: Final = struct.Struct(">QBQd")  # number, what, epoch, credits
SWITCH: Final = struct.Struct(">QH")  # number, shard of the owner
MARK: Final = struct.Struct(">QH")  # number, shard of the worker that asked
HAS: Final = struct.Struct(">QB")  # number, whether it has the session
NUMBER: Final = struct.Struct(">Q")


class Registered(Protocol):
    """Who knows what is claimed here: session_claims.py."""

    def claim(self, claimant: Claimant) -> None: ...

    def give_up(self, client_id: str, epoch: int, then: OnTakeover) -> None: ...

    def tell_whether(self, client_id: str, then: Callable[[bool], None]) -> None:
        """Call *then*, once no claim is under way, with whether there is a session here."""
        ...

    def keep_after_all(self, session: Session, epoch: int) -> None:
        """Who was to have *session* is gone: it is ours again, with *epoch*."""
        ...


class Adoption:
    """A claim of a session whose worker ends, for the client that will come back for it: a `Claimant`."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.clean_start = False
        self.expiry = 1  # it lasts: for how long, it says itself when it comes
        self.will: Will | None = None
        self.user: str | None = None

    def found(self, session: Session | None) -> None:
        pass  # it is in the store, without a connection; or it had ended

    def refused(self, reason: CloseReason) -> None:
        pass  # its worker counts it as lost


class Arrival:
    """A session that a client of ours wants, and others were asked for."""

    def __init__(self, number: int, client_id: str, asked: set[Peer], then: OnTakeover, deadline: float) -> None:
        self.number = number
        self.client_id = client_id
        self.asked = asked  # who have not answered
        self.then = then
        self.deadline = deadline
        self.epoch = 0  # the greatest that anybody had
        self.credits = UNKNOWN  # of its client
        self.source: Peer | None = None  # where it comes from
        self.thaw: SessionImport | None = None
        self.enrolling = False
        self.filter = TransferFilter(True)
        self.unmarked: set[Peer] = set()
        self.switched = False


class Departure:
    """A session of ours on its way to *peer*, which owns it with *epoch*."""

    def __init__(
        self, peer: Peer, number: int, epoch: int, frozen: SessionExport, filter: TransferFilter, unmarked: set[Peer]
    ) -> None:
        self.peer = peer
        self.number = number
        self.epoch = epoch
        self.askers: list[Callable[[], None]] = []  # who want it, and may know that *peer* is dead before we do
        self.frozen = frozen
        self.filter = filter
        self.unmarked = unmarked
        self.switched = False  # our own publishes do not go to it any more
        self.passed = False  # our peers have processed what we accepted from its client
        self.leaving = False


class Takeovers:
    """The `TakeoverRequests` of the registered sessions."""

    def __init__(
        self,
        worker: WorkerId,
        peers: Peers,
        barriers: Barriers,
        clock: Callable[[], float],
        failed: Callable[[Exception], None],
    ) -> None:
        self._all = peers
        self._barriers = barriers
        self.moving: SessionTransfer | None = None
        self.sessions: Registered | None = None
        self._worker = worker
        self._clock = clock
        self._failed = failed
        self._numbers = int(clock() * 1e6)  # others than those of a worker that was in our place before
        self._offers = 0
        self._arrivals: dict[int, Arrival] = {}
        self._departures: dict[tuple[int, int], Departure] = {}  # by shard of who asked, and its number
        self._leaving: dict[str, Departure] = {}  # those that are not decided, by client id
        self._moving: deque[Departure] = deque()  # with chunks to be sent
        self._questions: dict[int, tuple[Peer, Callable[[bool], None]]] = {}  # whether they have a session

    # Where its client is.

    def take_over(self, client_id: str, former: Owner, epoch: int, wanted: bool, then: OnTakeover) -> None:
        owners = [peer for peer in self._peers() if peer.worker == former.worker]
        self._ask(client_id, owners, epoch, wanted, then)

    def claim_within_node(self, client_id: str, epoch: int, wanted: bool, then: OnTakeover) -> None:
        self._ask(client_id, self._peers(), epoch, wanted, then)

    def whether(self, client_id: str, owner: Owner, then: Callable[[bool], None]) -> None:
        for peer in self._peers():
            if peer.worker == owner.worker:
                self._numbers += 1
                self._questions[self._numbers] = (peer, then)
                peer.tell(wire.frame(wire.WHETHER, NUMBER.pack(self._numbers) + client_id.encode()))
                return
        then(False)

    def _tell_whether(self, peer: Peer, number: int, has: bool) -> None:
        if not peer.gone:
            peer.tell(wire.frame(wire.HAS, HAS.pack(number, has)))

    def _peers(self) -> list[Peer]:
        return list(self._all.all)

    def _ask(self, client_id: str, peers: list[Peer], epoch: int, wanted: bool, then: OnTakeover) -> None:
        if not peers:
            then(TakeoverResult(None, nowhere=True))
            return
        self._numbers += 1
        number = self._numbers
        self._arrivals[number] = Arrival(number, client_id, set(peers), then, self._clock() + HANDOVER_PATIENCE)
        for peer in peers:
            peer.tell(wire.frame(wire.ASK, ASK.pack(number, epoch, wanted) + client_id.encode()))

    def _answered(self, peer: Peer, number: int, what: int, epoch: int, credits: float) -> None:
        arrival = self._arrivals.get(number)
        if arrival is None or peer not in arrival.asked:
            if what == COMES:
                peer.tell(wire.frame(wire.ABANDON, NUMBER.pack(number)))
            return
        arrival.asked.discard(peer)
        arrival.epoch = max(arrival.epoch, epoch)
        arrival.credits = min(arrival.credits, credits)
        if what == SUPERSEDED:
            self._give_up(arrival, TakeoverResult(None, epoch, superseded=True))
        elif what == COMES and arrival.source is not None:  # of a time when the two could not ask each other
            peer.tell(wire.frame(wire.ABANDON, NUMBER.pack(number)))
        elif what == COMES:
            assert self.moving is not None
            arrival.source = peer
            arrival.thaw = self.moving.expect()
        self._look_at(arrival)

    def _chunk(self, peer: Peer, number: int, chunk: bytes) -> None:
        arrival = self._arrivals.get(number)
        if arrival is None or arrival.source is not peer or arrival.thaw is None:
            return  # we gave up, and said so
        thaw = arrival.thaw
        try:
            thaw.take(chunk)
        except SessionImportError as error:
            self._failed(error)
            self._give_up(arrival, TakeoverResult(None, arrival.epoch))
            return
        if thaw.session is not None and not arrival.enrolling:
            assert self.moving is not None
            arrival.enrolling = True
            thaw.session.transfer_filter = arrival.filter
            self.moving.enrol(thaw, partial(self._enrolled, arrival))
        self._look_at(arrival)

    def _enrolled(self, arrival: Arrival) -> None:
        """It is subscribed here: from now on what is published here is for it, and soon what is published elsewhere."""
        source = arrival.source
        if source is None or self._arrivals.get(arrival.number) is not arrival:
            return
        peers = self._peers()
        arrival.switched = True
        arrival.filter.mark(self._worker)
        arrival.unmarked = set(peers)
        for peer in peers:
            peer.tell(wire.frame(wire.SWITCH, SWITCH.pack(arrival.number, source.shard)))
        source.write(self._mark(self._worker.shard, arrival.number))
        self._look_at(arrival)

    def _look_at(self, arrival: Arrival) -> None:
        """Conclude *arrival* if there is nothing to wait for any more."""
        thaw = arrival.thaw
        if self._arrivals.get(arrival.number) is not arrival or arrival.asked:
            return
        if thaw is None or arrival.source is None:
            self._conclude(arrival, TakeoverResult(None, arrival.epoch, nowhere=arrival.epoch == 0))
        elif thaw.complete and arrival.switched and not arrival.unmarked:
            assert self.moving is not None
            session = self.moving.take_in(thaw)
            session.transfer_filter = None
            arrival.source.tell(wire.frame(wire.TAKEN, NUMBER.pack(arrival.number)))
            arrival.thaw = None
            self._conclude(arrival, TakeoverResult(session, arrival.epoch))

    def _give_up(self, arrival: Arrival, handover: TakeoverResult) -> None:
        """It will not come, or not in time."""
        if arrival.source is not None:
            arrival.source.tell(wire.frame(wire.ABANDON, NUMBER.pack(arrival.number)))
        self._conclude(arrival, handover)

    def _conclude(self, arrival: Arrival, handover: TakeoverResult) -> None:
        assert self.moving is not None
        del self._arrivals[arrival.number]
        if arrival.thaw is not None:
            self.moving.turn_away(arrival.thaw)
        self.moving.bring_credits(arrival.client_id, arrival.credits, self._clock())
        arrival.then(handover)

    # Where it was.

    def _asked(self, peer: Peer, number: int, epoch: int, wanted: bool, client_id: str) -> None:
        if self.sessions is None:
            self._answer(peer, number, NOTHING, 0, UNKNOWN)
            return
        departure = self._leaving.get(client_id)
        if departure is not None and not departure.frozen.session.ended:
            departure.askers.append(partial(self._asked, peer, number, epoch, wanted, client_id))
            return
        self.sessions.give_up(client_id, epoch, partial(self._given_up, peer, number, epoch, wanted))

    def _given_up(self, peer: Peer, number: int, epoch: int, wanted: bool, handover: TakeoverResult) -> None:
        assert self.moving is not None and self.sessions is not None
        session = handover.session
        now = self._clock()
        if peer.gone:
            if session is not None:
                self.sessions.keep_after_all(session, epoch + 1)
            return
        if handover.superseded or session is None:
            self._answer(peer, number, SUPERSEDED if handover.superseded else NOTHING, handover.epoch, UNKNOWN)
            return
        frozen = None
        if wanted:
            frozen = self.moving.give_up(session, now)
        else:
            self.moving.end_elsewhere(session, now)
        credits = self.moving.credits(session.client_id, now)
        if frozen is None:
            self._barriers.when_passed(partial(self._nothing_left, peer, number, handover.epoch, credits), now)
            return
        filter = TransferFilter(False)
        session.transfer_filter = filter
        departure = Departure(peer, number, epoch, frozen, filter, set(self._peers()))
        self._departures[peer.shard, number] = self._leaving[session.client_id] = departure
        # On the lane of the chunks, or they could come first.
        peer.write(wire.DATA_HEAD + wire.frame(wire.ANSWER, ANSWER.pack(number, COMES, handover.epoch, credits)))
        self._moving.append(departure)
        self._barriers.when_passed(partial(self._passed, departure), now)

    def _nothing_left(self, peer: Peer, number: int, epoch: int, credits: float, now: float) -> None:
        self._answer(peer, number, NOTHING, epoch, credits)

    def _answer(self, peer: Peer, number: int, what: int, epoch: int, credits: float) -> None:
        if not peer.gone:
            peer.tell(wire.frame(wire.ANSWER, ANSWER.pack(number, what, epoch, credits)))

    def _passed(self, departure: Departure, now: float) -> None:
        departure.passed = True
        self._leave(departure)

    def _leave(self, departure: Departure) -> None:
        """Once nothing is sent to it any more it leaves our routes; then the rest of it is sent."""
        if departure.leaving or not departure.passed or not departure.switched or departure.unmarked:
            return
        if self._departures.get((departure.peer.shard, departure.number)) is departure:
            assert self.moving is not None
            departure.leaving = True
            self.moving.withdraw(departure.frozen, partial(self._left, departure))

    def _left(self, departure: Departure) -> None:
        self._moving.append(departure)

    def _taken(self, peer: Peer, number: int) -> None:
        departure = self._departures.pop((peer.shard, number), None)
        if departure is not None:
            assert self.moving is not None
            self.moving.gone(departure.frozen)
            self._decided(departure)

    def _take_back(self, departure: Departure, then: Callable[[Departure], None]) -> None:
        """The session stays here, without a connection; *then* it is told what becomes of it."""
        del self._departures[departure.peer.shard, departure.number]
        assert self.moving is not None
        departure.frozen.session.transfer_filter = None
        self.moving.take_back(departure.frozen, self._clock(), partial(then, departure))

    def _keep(self, departure: Departure) -> None:
        """Who asked for it is gone: it is ours, after that one's claim and before those that have come since."""
        assert self.sessions is not None
        session = departure.frozen.session
        if not session.ended:
            self.sessions.keep_after_all(session, departure.epoch + 1)
        self._decided(departure)

    def _drop(self, departure: Departure) -> None:
        """Who asked for it went on without it: it ends."""
        assert self.moving is not None
        self.moving.end_elsewhere(departure.frozen.session, self._clock())
        self._decided(departure)

    def _decided(self, departure: Departure) -> None:
        """It is here, or it is not: those who have asked meanwhile may know."""
        if self._leaving.get(departure.frozen.session.client_id) is departure:
            del self._leaving[departure.frozen.session.client_id]
        for ask in departure.askers:
            ask()

    def departing(self) -> int:
        """Sessions that are on their way, and are not taken yet."""
        return len(self._departures)

    def offer(self, session: Session) -> None:
        """This worker ends: let one of the others have *session*."""
        peers = self._peers()
        if peers:
            self._offers += 1
            peers[self._offers % len(peers)].tell(wire.frame(wire.OFFER, session.client_id.encode()))

    # At every worker.

    def _switch(self, peer: Peer, number: int, owner: int) -> None:
        """*peer* has subscribed a session that was at the worker *owner*: what we send from now on is for it there."""
        mark = self._mark(peer.shard, number)
        peer.write(mark)
        departure = self._departures.get((peer.shard, number))
        if departure is not None and owner == self._worker.shard:
            departure.switched = True
            departure.filter.mark(self._worker)
            self._leave(departure)
            return
        for other in self._peers():
            if other.shard == owner:
                other.write(mark)

    def _mark(self, asker: int, number: int) -> bytes:
        return wire.DATA_HEAD + wire.frame(wire.MARK, MARK.pack(number, asker))

    def _marked(self, peer: Peer, asker: int, number: int) -> None:
        """What *peer* sends from here on is for the session at its new place."""
        if asker == self._worker.shard:
            arrival = self._arrivals.get(number)
            if arrival is not None:
                arrival.filter.mark(peer.worker)
                arrival.unmarked.discard(peer)
                self._look_at(arrival)
            return
        departure = self._departures.get((asker, number))
        if departure is not None:
            departure.filter.mark(peer.worker)
            departure.unmarked.discard(peer)
            self._leave(departure)

    def take(self, peer: Peer, kind: int, body: bytes) -> bool:
        """A frame from *peer* about a session; false if it is about something else."""
        if kind == wire.ASK:
            number, epoch, wanted = ASK.unpack_from(body)
            self._asked(peer, number, epoch, bool(wanted), body[ASK.size :].decode())
        elif kind == wire.ANSWER:
            number, what, epoch, credits = ANSWER.unpack(body)
            self._answered(peer, number, what, epoch, credits)
        elif kind == wire.CHUNK:
            (number,) = NUMBER.unpack_from(body)
            self._chunk(peer, number, body[NUMBER.size :])
        elif kind == wire.SWITCH:
            number, owner = SWITCH.unpack(body)
            self._switch(peer, number, owner)
        elif kind == wire.MARK:
            number, asker = MARK.unpack(body)
            self._marked(peer, asker, number)
        elif kind == wire.TAKEN:
            self._taken(peer, NUMBER.unpack(body)[0])
        elif kind == wire.OFFER:
            if self.sessions is not None:
                self.sessions.claim(Adoption(body.decode()))
        elif kind == wire.ABANDON:
            departure = self._departures.get((peer.shard, NUMBER.unpack(body)[0]))
            if departure is not None:
                self._take_back(departure, self._drop)
        elif kind == wire.WHETHER:
            assert self.sessions is not None
            (number,) = NUMBER.unpack_from(body)
            client_id = body[NUMBER.size :].decode()
            self.sessions.tell_whether(client_id, partial(self._tell_whether, peer, number))
        elif kind == wire.HAS:
            number, has = HAS.unpack(body)
            self._questions.pop(number)[1](bool(has))
        else:
            return False
        return True

    def joined(self, peer: Peer) -> None:
        """*peer* is new, and knows all the others: what it will send is for one place or the other, too."""
        for departure in self._departures.values():
            if not departure.leaving:
                departure.unmarked.add(peer)
        for arrival in self._arrivals.values():
            if arrival.switched and arrival.source is not None:
                arrival.unmarked.add(peer)
                peer.tell(wire.frame(wire.SWITCH, SWITCH.pack(arrival.number, arrival.source.shard)))

    def lost(self, peer: Peer) -> None:
        """*peer* is gone, and all that it sent was taken."""
        for number, (asked, then) in list(self._questions.items()):
            if asked is peer:
                del self._questions[number]
                then(False)
        for arrival in list(self._arrivals.values()):
            arrival.asked.discard(peer)
            arrival.unmarked.discard(peer)
            if arrival.source is peer and not (arrival.thaw is not None and arrival.thaw.complete):
                self._conclude(arrival, TakeoverResult(None, arrival.epoch))
            else:
                self._look_at(arrival)
        for departure in list(self._departures.values()):
            departure.unmarked.discard(peer)
            if departure.peer is peer:
                self._take_back(departure, self._keep)
            else:
                self._leave(departure)

    # Work in pages, and time.

    def busy(self) -> bool:
        """There are chunks to be sent now."""
        return bool(self._moving) and any(departure.peer.gate.open for departure in self._moving)

    def work(self, until: float) -> None:
        """Send chunks, one at least, until the time *until*."""
        for _ in range(len(self._moving)):
            departure = self._moving.popleft()
            if self._departures.get((departure.peer.shard, departure.number)) is not departure:
                continue
            if self._send(departure, until):
                self._moving.append(departure)
            if self._clock() >= until:
                return

    def _send(self, departure: Departure, until: float) -> bool:
        """Send chunks of it; true if there are more that have to wait."""
        peer = departure.peer
        while peer.gate.open:
            chunk = departure.frozen.next_chunk()
            if not chunk:
                return False
            peer.write(wire.DATA_HEAD + wire.frame(wire.CHUNK, NUMBER.pack(departure.number) + chunk))
            if self._clock() >= until:
                break
        return True

    def tick(self, now: float) -> None:
        """Give up what takes too long: the client will have gone."""
        for arrival in [one for one in self._arrivals.values() if one.deadline <= now]:
            self._give_up(arrival, TakeoverResult(None, arrival.epoch))
