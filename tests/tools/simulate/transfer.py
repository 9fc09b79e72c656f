# A session moves from a worker that lives to another one, in the steps of cluster/takeover.py and session_transfer.py.
#
#   begun      its connection is closed; every worker takes what it was sent for its client before
#   expected   the new worker will have it, once it has removed what it stored of an earlier session of the client
#   switched   publishes go to the new worker; what was sent to the former one before that has to be taken there
#   giving     the former one stores all, and gives it
#   told       the new worker was told that it owns the session
#   reading    it reads what is stored
#
# If one of the two ends, the other one has it, or takes it in Redis, where the last step that was stored decides: a
# session that is to be given to a worker that has ended, and whose sessions are adopted, stays.
#
# A worker that has ended had the filters of the session in its routes if it was to give it, or to take it (of one that
# does not answer: by a stand-in, cluster/forced_takeovers.py). So publishes wait until its own sessions are adopted.
#
# What was on its way to a worker that has ended, or that does not answer, when a session was taken from it, is
# published again. So the new worker drops what it has got since, and all workers close the connections before whose
# publishes are not confirmed (cluster/forced_takeovers.py).
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.protocol.pending_wills import PendingWill
from broker.protocol.publish_answers import redeliver_unanswered
from broker.session.message import RELEASED
from broker.session.packet_ids import unpack
from broker.session.session import Session
from broker.store.durable.adoption import AdoptedSession
from broker.store.durable.queue_state import decode_state
from tests.tools.simulate.link import Given, Link, Mark
from tests.tools.simulate.worker import Place, SimWorker

if TYPE_CHECKING:
    from tests.tools.simulate.world import World

BEGUN: Final = 0
EXPECTED: Final = 1
SWITCHED: Final = 2
GIVING: Final = 3
TOLD: Final = 4
READING: Final = 5


class Transfer:
    def __init__(self, world: "World", giver: SimWorker, taker: SimWorker, link: Link) -> None:
        """*link*: the connection at *taker* that waits for the session."""
        self.stage = BEGUN
        self._world = world
        self._giver = giver
        self._taker = taker
        self._link = link
        self._client = link.client
        session = giver.sessions[link.client]
        former = giver.link_of(session)
        if former is not None:
            giver.close(former)
        del giver.sessions[link.client]
        giver.leaving[link.client] = session
        redeliver_unanswered(session)
        self._session = session  # at *giver*
        self._mark = Mark([worker.lanes[giver] for worker in world.workers if giver in worker.lanes])

    def go_on(self) -> None:
        """Take the next step if it can be taken."""
        giver, taker = self._giver, self._taker
        if self.stage == BEGUN and not (taker.stopped or giver.stopped) and self._mark.passed():
            self._expect()
        elif self.stage == SWITCHED and not (giver.stopped or giver.dead) and self._mark.passed():
            self.stage = GIVING
            storage = self._session.storage
            assert storage is not None
            storage.give(taker.incarnation, self._was_given)

    def _expect(self) -> None:
        self.stage = EXPECTED
        taker = self._taker
        taker.expect(self._client, self._bring)
        if self._client in taker.sessions:  # which may have been taken from it
            taker.store.commit.confirm(self._replace)
        else:
            taker.store.commit.when_removed(self._switch)

    def _replace(self) -> None:
        taker = self._taker
        stale = taker.sessions.get(self._client)
        if stale is not None:
            taker.evict(stale)
        taker.store.commit.when_removed(self._switch)

    def _bring(self, session: Session) -> None:
        """What goes with *session* beside what is stored."""
        session.will = self._session.will
        if self._session.incoming is not None:
            session.incoming = unpack(self._session.incoming.pack())

    def _switch(self) -> None:
        if self.stage != EXPECTED:
            return  # it was cancelled
        session = self._taker.coming[self._client]
        session.subscriptions.update(self._session.subscriptions)
        self.stage = SWITCHED
        if self._giver.dead:  # its sessions may have been adopted
            self._read(self._giver.incarnation, b"")
            return
        self._world.moved(self._client, self._taker, session)
        self._mark = self._giver.mark()

    def _was_given(self, state: bytes | None) -> None:
        """The former worker has stored all, or cannot, and given it; None: the new one has ended, and it stays."""
        if state is not None:
            self._world.late |= decode_state(state)[0] is None
            storage = self._session.storage
            assert storage is not None
            for message in storage.disown():
                self._giver.abandon(message.as_published().completion)
        if state is None:
            assert self._taker.dead
            self._end()
            self._stay()
        elif self._taker.dead:  # whoever follows it has the session, or will have it
            self._end()
            self._finish_at_giver()
            self._world.forget_if_gone(self._client)
        else:
            self.stage = TOLD
            self._taker.lane_from(self._giver).write(Given(self, state))

    def _stay(self) -> None:
        giver, client = self._giver, self._client
        if giver.leaving.pop(client, None) is not None:  # or it was taken from there
            giver.sessions[client] = self._session
            self._world.moved(client, giver, self._session)
            giver.wills.restored(self._session)

    def given(self, state: bytes) -> None:
        """The new worker is told."""
        self._read(b"", state)

    def _read(self, former: bytes, state: bytes) -> None:
        self.stage = READING
        self._taker.store.take(self._client.encode(), former, state, self._found, self._world.now)

    def _found(self, found: AdoptedSession | None, now: float) -> None:
        world, taker = self._world, self._taker
        self._end()
        if not self._giver.dead:
            self._finish_at_giver()
        session = taker.coming[self._client]
        if found is None:
            del taker.coming[self._client]
            assert session.storage is not None
            for message in session.storage.disown():
                taker.abandon(message.as_published().completion)
            session.restore({})
            session.end()
            world.forget_if_gone(self._client)  # or it was taken from the giver, by a worker that has ended
            taker.close(self._link)
            return
        session.restore(dict.fromkeys(found.record.released_ids(), RELEASED))
        taker.wills.found(session, found.stored.will)
        taker.arrived(self._client)
        world.places[self._client] = Place(taker, session)
        taker.welcome(self._link, session, True)

    def _finish_at_giver(self) -> None:
        self._giver.leaving.pop(self._client, None)
        self._session.restore({})
        self._session.end()

    def _end(self) -> None:
        self._world.transfers.remove(self)
        self._world.moving.discard(self._client)

    # One of the two ends.

    def lost(self, worker: SimWorker) -> None:
        """*worker* is dead."""
        if worker is self._giver:
            self._giver_lost()
        elif worker is self._taker:
            self._taker_lost()

    def _giver_lost(self) -> None:
        taker = self._taker
        if self.stage in (SWITCHED, GIVING):
            self._world.orphan(self._client, self._giver)
        if taker.dead:
            self._end()
            self._world.places[self._client].others.append(self._giver)
        elif self.stage == BEGUN:
            self._end()
            taker.close(self._link)
        elif self.stage in (SWITCHED, GIVING):
            taker.drop_early(self._client)
            self._read(self._giver.incarnation, b"")

    def _taker_lost(self) -> None:
        giver, client = self._giver, self._client
        if self.stage >= SWITCHED:
            self._world.orphan(client, self._taker)
        if self.stage == GIVING and not giver.dead:
            return
        stage, self.stage = self.stage, READING
        self._end()
        if giver.dead:
            place = self._world.places[client]
            others = {giver, self._taker, *place.others} - {place.worker}
            place.others = sorted(others, key=lambda each: each.number)
        elif stage in (BEGUN, EXPECTED, SWITCHED):
            self._stay()
        elif stage in (TOLD, READING):
            self._finish_at_giver()


class Take:
    """A worker takes the session of a client from one that has ended or does not answer."""

    def __init__(self, world: "World", former: SimWorker, taker: SimWorker, link: Link) -> None:
        self._world = world
        self._former = former
        self._taker = taker
        self._link = link
        stale = taker.sessions.get(link.client)
        if stale is not None:
            taker.evict(stale)
        client = link.client.encode()
        taker.store.expect(client)
        world.moving.add(link.client)
        world.takes.append(self)
        taker.store.commit.when_removed(partial(self._take, client))

    def _take(self, client: bytes) -> None:
        self._taker.store.take(client, self._former.incarnation, b"", self._found, self._world.now)

    def _found(self, found: AdoptedSession | None, now: float) -> None:
        world, taker, link = self._world, self._taker, self._link
        self._end()
        if found is None:  # another worker has adopted it, or will
            taker.close(link)
            world.forget_if_gone(link.client)
            return
        session = taker.restore(found)
        place = world.places[link.client] = Place(taker, session)
        former = self._former
        if not former.dead:
            if link.client in former.sessions or link.client in former.leaving:  # it does not know
                place.waits_for.add(former)
            Hold(world, former, taker, taker.wills.hold(session))
            for worker in world.workers:
                worker.let_go_of(former)
        taker.welcome(link, session, True)

    def _end(self) -> None:
        self._world.takes.remove(self)
        self._world.moving.discard(self._link.client)

    def lost(self, worker: SimWorker) -> None:
        """*worker* is dead."""
        if worker is self._taker:
            self._end()
            self._world.orphan(self._link.client, self._taker)
            self._world.places[self._link.client].others.append(self._taker)
            self._world.forget_if_gone(self._link.client)


class Hold:
    """*taker* has taken a session from *former*, which publishes its *will* when it goes on."""

    def __init__(self, world: "World", former: SimWorker, taker: SimWorker, will: PendingWill | None) -> None:
        self._world = world
        self._former = former
        self._taker = taker
        self._will = will
        world.holds.append(self)
        former.store.commit.confirm(partial(former.store.commit.confirm, self._let_go))

    def _let_go(self) -> None:
        self._end(True)

    def lost(self, worker: SimWorker) -> None:
        """*worker* is dead."""
        if worker is self._former:
            self._end(False)

    def _end(self, published: bool) -> None:
        self._world.holds.remove(self)
        if self._will is not None and not self._taker.dead:  # otherwise whoever adopts the will publishes it
            self._taker.wills.end_hold(self._will, published)
