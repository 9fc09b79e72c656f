# The registry: which worker owns the session of a client id, in the whole cluster [MQTT-3.1.4-3].
#
# It is kept in Redis, and each step is one call of claim.lua, so Redis never has two owners of a session. A claim
# returns an epoch that is greater than all epochs before, and the former owner; later calls of that owner, with a lower
# epoch, change nothing (it is fenced).
#
# A claim has a lease, which its worker renews as long as it has the session, with a client or without. A durable
# session outlives its claim: nobody renews that of a worker that has died, and the worker that adopts the session
# claims nothing. So a claim that finds no other looks which worker of the cluster has the session stored, and names
# that worker as the former owner. What is stored is the authority; a claim says where a session is that is stored
# nowhere, or about to move. Rejected: claims of adopted sessions that last as long as the session, written by the
# script that adopts it. Each claim that is lost or overwritten (a worker dies between its claim and the move of the
# session, or the end of the log is lost) would still lose the session; a claim whose session is gone would stay for
# ever; and to release such a claim its worker would have to remember an epoch for each absent session. Rejected: the
# adopter claims and renews them as its own. That takes 200 bytes for each absent session, and a claim by its clock
# could beat that of a client that has just come to another worker. Rejected: a claim that finds no other asks all
# workers: each new client would wait for the slowest of them. The look costs the server 8 us, nearly as much as the
# claim itself, and only if no claim is found.
#
# The workers go on without Redis: sessions that were claimed while it was away, and all that it may have lost, are
# claimed again (owned_sessions.py) when the connection is ready again, when the generation key has another value, and
# before a lease ends.
from collections.abc import Callable
from importlib.resources import files
from typing import Final

from broker.cluster.claim_policy import (
    ASK_AGAIN,
    CLAIM_PATIENCE,
    PAUSE,
    REFUSE,
    WITHIN_NODE,
    after_failure,
    before_asking,
    patience,
)
from broker.cluster.owned_sessions import TIMEOUT, OwnedSessions, OwnershipConflict
from broker.cluster.owner import Owner, epoch_and_owner, lacks_will
from broker.config.schema import Overload
from broker.overload.gate import Gate
from broker.reasons import StoreFailure
from broker.store.redis.connection import LONGEST_PAUSE, READY, packed
from broker.store.redis.keys import LEASE, Keys
from broker.store.redis.pipeline import CallbackCommand, Command, CommandPipeline, OnReady
from broker.store.redis.script import Script
from broker.worker_id import WorkerId

CLAIMED: Final = 0  # Redis has answered with `epoch` and `former`
LOCAL: Final = 1  # Redis is away, and the session may be claimed within the node: see `Registry.hold_locally()`
REFUSED: Final = 2  # Redis is away, and the session may be at another node: SERVER_UNAVAILABLE (0x88; 3.x: 3)
OF_OTHER_USER: Final = 3  # the session is at another node, and belongs to another user

NO_RESOURCE: Final = 0  # publishes do not need the gate of claims
CHECK_EVERY: Final = 1.0  # seconds between two checks of the generation
CLAIM_COST: Final = 1000  # units of the reactor's quantum: the answer to a claim costs 50 us
UNCERTAIN_FOR: Final = (
    2 * LONGEST_PAUSE
)  # seconds within which all workers have told a Redis that is back what it may have lost
NO_INCARNATION: Final = 0  # of a worker that is not known, and that nobody finds
RENEW: Final = LEASE / 3  # seconds after which all sessions are claimed again, so that no lease ends


class Verdict:
    """The result of a claim."""

    def __init__(self, outcome: int, epoch: int, former: Owner | None, uncertain: bool = False) -> None:
        self.outcome = outcome
        self.epoch = epoch
        self.former = former  # None also if this worker was the owner
        self.uncertain = (
            uncertain  # any worker may have the session: Redis named this worker for a claim whose answer was
        )
        # lost, or has just come back and may have lost data


class RegistryStatistics:
    def __init__(self) -> None:
        self.claims = 0
        self.outcomes = [0, 0, 0, 0]  # by CLAIMED, LOCAL, REFUSED, OF_OTHER_USER
        self.forgotten = 0  # times that the generation had changed


class Registry(OnReady):
    def __init__(
        self,
        commands: CommandPipeline,
        keys: Keys,
        *,
        worker: WorkerId,
        wall: Callable[[], float],
        new_generation: Callable[[], str],
        overload: Overload,
        alone: bool = False,
        durable: bool = False,
    ) -> None:
        """*wall*: Unix time in seconds; *new_generation* returns a random text. *durable*: sessions are stored.

        *alone*: this is the only worker that registers sessions. It claims at once, and Redis is told afterwards, of
        many sessions in one call, for the wills and for the worker that replaces this one.
        """
        self.worker = worker
        self.statistics = RegistryStatistics()
        self.script = Script(commands, files("broker.cluster").joinpath("claim.lua").read_bytes())
        self.owned = OwnedSessions(commands, keys, self.script, worker, alone)
        self._commands = commands
        self._keys = keys
        self._me = worker.incarnation_text
        self._place = f"{worker.shard} {worker.node}"
        self._overload = overload
        self._gate = Gate(overload, "", NO_RESOURCE, 0.0)  # of claims
        self._alone = alone
        self._durable_owners = keys.durable_owners("") if durable else None  # how the keys of nodes begin
        self._wall = wall
        self._new_generation = new_generation
        self.fenced: Callable[[], None] = _nobody_hears  # called when this worker counts as dead
        self._fence = keys.dead(0, worker.incarnation_text.encode())
        self._generation: object = None
        self._next_check = 0.0
        self._uncertain_until = 0.0
        self._renew = 0.0
        self._retries: dict[
            _Claim, float
        ] = {}  # claims that are tried again, and when; few, and at most as old as PAUSE
        commands.on_ready(self)

    def claim(
        self, client_id: str, user: str, lasting: bool, will: bytes, then: Callable[[Verdict], None], now: float
    ) -> None:
        """A CONNECT claims the session of *client_id*; *then* is called once, perhaps before this returns.

        *user*: the tag of its user. *lasting*: it is or will be stored, or may be at another worker.
        *will*: as `will_record.encode()` makes it, or b"". A session that is CLAIMED is held until `release()`.
        """
        self.statistics.claims += 1
        claim = _Claim(self, client_id, user, lasting, will, then, now)
        if self._alone or before_asking(lasting, self._commands.unresponsive_for(now)) == WITHIN_NODE:
            claim.decide(LOCAL, 0, None)
        else:
            self._ask(claim, now)

    def has_room(self, now: float) -> bool:
        """Whether Redis would answer one more claim in time, or need not be asked."""
        return self._alone or self._gate.fits(1, 0) or self._commands.unresponsive_for(now) >= CLAIM_PATIENCE

    def next_epoch(self, client_id: str) -> int:
        """An epoch for a claim without Redis: from the clock of this worker, and later than the epoch it holds."""
        return max(int(self._wall() * 1e6), self.epoch_of(client_id) + 1)

    def hold_locally(self, client_id: str, epoch: int, user: str, will: bytes) -> None:
        """The session was claimed within the node with *epoch*. Redis is told when it is back."""
        self.owned.hold_stale(client_id, epoch, user, will)

    def release(self, client_id: str) -> None:
        """The session has ended here. If another worker has claimed it since, that claim stays."""
        self.owned.release(client_id)

    def give_back(self, client_id: str, former: Owner | None, user: str) -> None:
        """A claim was in vain: *former* owns the session as before; None: a worker that nobody knows, for *user*.

        Without any owner the next claimant would take it that there is no session.
        """
        if former is None:
            former = Owner(1, WorkerId(self.worker.node, self.worker.shard, NO_INCARNATION), user)
        self.owned.give_back(client_id, former.text())

    def send_now(self, now: float) -> None:
        """Send Redis now what `tick()` would send, unless a page is unanswered."""
        self.owned.send_page(now)

    def yield_to(self, client_id: str, epoch: int) -> bool:
        """Give the session up if *epoch*, with which another worker owns it, is the later one; true if it is."""
        return self.owned.yield_to(client_id, epoch)

    def replace_will(self, client_id: str, will: bytes) -> None:
        """The session of *client_id*, which is held, has *will* now, and not the one it was claimed with."""
        held = self.owned.get(client_id)
        if held is not None and held.will != will:
            self.owned.hold_stale(client_id, held.epoch, held.user, will)

    def drop_will(self, client_id: str, now: float) -> bool:
        """The will of *client_id* was published or withdrawn: delete it in Redis. False: Redis is away."""
        return self.owned.drop_will(client_id, now)

    def epoch_of(self, client_id: str) -> int:
        """The epoch with which this worker owns *client_id*; 0 if it does not."""
        held = self.owned.get(client_id)
        return 0 if held is None else held.epoch

    def tick(self, now: float) -> float:
        """Do what is due; return the time of the next thing that will be."""
        due = now + CHECK_EVERY
        again = self._retries
        if again:
            for claim in [claim for claim, when in again.items() if when <= now]:
                del again[claim]
                self._ask(claim, now)
            due = min([due, *again.values()])
        if self._commands.state == READY:
            if now >= self._next_check:
                self._check_generation(now)
            if now >= self._renew:
                self._reclaim_all(now)
            self.owned.send_page(now)
            due = min(due, self._next_check)
        return due

    def redis_ready(self, now: float) -> None:
        """Redis is (again) connected: send the script, then check the generation, then claim all sessions again."""
        self._gate = Gate(self._overload, "", NO_RESOURCE, now)  # it may be another server, at another distance
        self.script.load(now)
        self._commands.submit(
            _MakeGeneration(packed("SET", self._keys.generation, self._new_generation(), "NX"), TIMEOUT), now
        )
        self._check_generation(now)
        if self._generation is not None:
            self._uncertain_until = now + UNCERTAIN_FOR
        self._reclaim_all(now)

    def _ask(self, claim: "_Claim", now: float) -> None:
        client = claim.client_id.encode()
        keys = self._keys
        number, me = keys.slice_of(client), self._me.encode()
        words: list[str | bytes | int] = ["claim", LEASE, self._me, self._place, client, claim.user, claim.will]
        names = [keys.wills(number, me), keys.owner(client), keys.dead(number, me)]
        if self._durable_owners is not None:
            names.append(keys.nodes)
            words += [keys.records(number), self._durable_owners]
        command = self.script.call(names, words)
        self._commands.submit(
            _ClaimStep(command, patience(claim.lasting, now - claim.since), claim, self._gate, now), now
        )

    def answered(self, claim: "_Claim", reply: object, now: float) -> None:
        epoch, named = epoch_and_owner(reply)
        if not epoch:
            claim.decide(OF_OTHER_USER, 0, None)
            return
        former = claim.former_owner(named)
        ours = former is not None and former.worker == self.worker
        held = self.owned.get(claim.client_id)
        uncertain = ours or (former is None and now < self._uncertain_until)
        uncertain = uncertain and held is None and not self.owned.ended(claim.client_id)
        if ours:  # perhaps by an earlier CONNECT, whose claim came too late: then the session is still where it was
            former = self.owned.restored_owner(claim.client_id) if held is None else None
        if held is None or held.epoch < epoch:
            self.owned.hold(claim.client_id, epoch, claim.user, claim.will)
            if claim.will and lacks_will(reply):
                self.owned.mark_stale([claim.client_id])
        else:  # claimed within the node, by a clock that is ahead of Redis: that epoch stays
            epoch = held.epoch
            self.owned.hold_stale(claim.client_id, epoch, claim.user, claim.will)
        if former is not None:
            self.owned.drop_will_of(former, claim.client_id, now)
        claim.decide(CLAIMED, epoch, former, uncertain)

    def failed(self, claim: "_Claim", failure: StoreFailure, now: float) -> None:
        self.script.failed(failure, now)
        step = after_failure(failure, claim.lasting, now - claim.since)
        if step == ASK_AGAIN:
            self._retries[claim] = now + PAUSE
        else:
            claim.decide(REFUSED if step == REFUSE else LOCAL, 0, None)

    def came_late(self, claim: "_Claim", reply: object, now: float) -> None:
        """Redis has carried out a claim that had timed out: undo that unless this worker owns the session."""
        epoch, named = epoch_and_owner(reply)
        former = claim.former_owner(named)
        if not epoch or not claim.decided:
            return  # it changed nothing, or it was tried again, and that answer is the later one
        held = self.owned.get(claim.client_id)
        ours = former is not None and former.worker == self.worker
        if held is None:
            if former is None or not ours:
                self.owned.release_epoch(claim.client_id, epoch, "" if former is None else former.text())
            return  # this worker owns it since another late claim; the next claimant asks all workers
        if held.epoch < epoch:
            held.epoch = epoch
        if former is not None and not ours:
            self.owned.found_conflict(OwnershipConflict(claim.client_id, former, held.epoch))

    def _reclaim_all(self, now: float) -> None:
        self._renew = now + RENEW
        self.owned.mark_all_stale()

    def _check_generation(self, now: float) -> None:
        self._next_check = now + CHECK_EVERY
        self._commands.submit(_CheckGeneration(self, packed("GET", self._keys.generation)), now)
        self._commands.submit(CallbackCommand(packed("EXISTS", self._fence), TIMEOUT, self._looked_at_fence), now)

    def _looked_at_fence(self, reply: object, failure: StoreFailure | None) -> None:
        if reply == 1:
            self.fenced()

    def generation_is(self, generation: object, now: float) -> None:
        """Redis has answered; None: it has lost everything while the connection was up."""
        if generation is None:
            self._commands.submit(
                _MakeGeneration(packed("SET", self._keys.generation, self._new_generation(), "NX"), TIMEOUT), now
            )
            self._check_generation(now)
        elif generation != self._generation:
            if self._generation is not None:
                self.statistics.forgotten += 1
                self._uncertain_until = now + UNCERTAIN_FOR
                self._reclaim_all(now)
            self._generation = generation


class _Claim:
    """A CONNECT that waits for the answer of Redis."""

    def __init__(
        self,
        registry: Registry,
        client_id: str,
        user: str,
        lasting: bool,
        will: bytes,
        then: Callable[[Verdict], None],
        since: float,
    ) -> None:
        self.registry = registry
        self.client_id = client_id
        self.user = user
        self.lasting = lasting
        self.will = will
        self.since = since
        self.decided = False
        self._then = then
        self._heard = False
        self._former: Owner | None = None

    def former_owner(self, former: Owner | None) -> Owner | None:
        """The owner before the first try of this claim; *former*: the owner before this try."""
        if not self._heard:
            self._heard = True
            self._former = former
        return self._former

    def decide(self, outcome: int, epoch: int, former: Owner | None, uncertain: bool = False) -> None:
        self.decided = True
        self.registry.statistics.outcomes[outcome] += 1
        self._then(Verdict(outcome, epoch, former, uncertain))


class _ClaimStep(Command):
    def __init__(self, command: bytes, patience: float, claim: _Claim, gate: Gate, now: float) -> None:
        super().__init__(command, patience)
        self.units = CLAIM_COST
        self._claim = claim
        self._gate = gate
        self._asked = now
        gate.take(1, 0, now)

    def replied(self, reply: object, now: float) -> None:
        self._gate.done(1, 0, now - self._asked, now)
        self._claim.registry.answered(self._claim, reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._gate.done(1, 0, now - self._asked, now)
        self._claim.registry.failed(self._claim, failure, now)

    def replied_late(self, reply: object, now: float) -> None:
        self._claim.registry.came_late(self._claim, reply, now)


class _MakeGeneration(Command):
    """Set the generation, unless another worker was first. A check follows, and reads the result."""

    def replied(self, reply: object, now: float) -> None:
        pass

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        pass


class _CheckGeneration(Command):
    """Read the generation; if this fails, another check follows."""

    def __init__(self, registry: Registry, command: bytes) -> None:
        super().__init__(command, TIMEOUT)
        self._registry = registry

    def replied(self, reply: object, now: float) -> None:
        self._registry.generation_is(reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        pass


def _nobody_hears() -> None:
    pass
