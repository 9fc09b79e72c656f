# The registry: which worker owns the session of a client id, in the whole cluster [MQTT-3.1.4-3].
#
# It is kept in Redis, and each step is one call of claim.lua, so as far as Redis can tell two workers never own a
# session at once. A claim gives an epoch that is greater than all before, and names who owned the session until then;
# what an owner says later with a lower epoch changes nothing (it is fenced).
# Redis is not needed to go on: what is claimed while it is away, and all that it may have forgotten, it is told of
# again (owned_sessions.py): when the connection is ready again, when the generation key is another one, and before a
# lease ends.
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
from broker.cluster.owned_sessions import PATIENCE, OwnedSessions, OwnershipConflict
from broker.cluster.owner import Owner, epoch_and_owner
from broker.config.schema import Overload
from broker.overload.gate import Gate
from broker.reasons import StoreFailure
from broker.store.redis.connection import LONGEST_PAUSE, READY, packed
from broker.store.redis.keys import LEASE, Keys
from broker.store.redis.pipeline import Command, CommandPipeline, OnReady
from broker.store.redis.script import Script
from broker.worker_id import WorkerId

CLAIMED: Final = 0  # `epoch` and `former` say what Redis said
LOCAL: Final = 1  # Redis is away, and the session may be claimed within the node: see `Registry.hold_locally()`
REFUSED: Final = 2  # Redis is away, and the session may be elsewhere: SERVER_UNAVAILABLE (0x88; 3.x: 3)

NO_RESOURCE: Final = 0  # no publish waits for claims
LOOK: Final = 1.0  # seconds between two looks at the generation
LETTING_IN: Final = 1000  # units of the reactor's quantum: what follows from a claim, 50 us; few are done at a time
DOUBT: Final = 2 * LONGEST_PAUSE  # seconds in which all workers tell Redis, when it is back, what it may have forgotten
RENEW: Final = LEASE / 3  # seconds after which everything is claimed again, so that no lease ends


class Verdict:
    """What a claim came to."""

    def __init__(self, outcome: int, epoch: int, former: Owner | None, doubtful: bool = False) -> None:
        self.outcome = outcome
        self.epoch = epoch
        self.former = former  # None also if it was this worker
        self.doubtful = doubtful  # Redis named this worker for a claim that nobody heard of, or has just come back and
        # may have forgotten what it knew: anybody may have the session


class RegistryStatistics:
    def __init__(self) -> None:
        self.claims = 0
        self.outcomes = [0, 0, 0]  # by CLAIMED, LOCAL, REFUSED
        self.forgotten = 0  # times that the generation was another one


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
    ) -> None:
        """*wall*: Unix time in seconds; *new_generation* returns a random text.

        Who is *alone*, the only worker of all that use this Redis, has nobody to ask: it claims at once, and Redis is
        told afterwards, of many in one go, for the sake of the wills and of whoever comes after it.
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
        self._gate = Gate(overload, "", NO_RESOURCE, 0.0)  # for claims
        self._alone = alone
        self._wall = wall
        self._new_generation = new_generation
        self._generation: object = None
        self._look = 0.0
        self._doubtful_until = 0.0
        self._renew = 0.0
        self._again: dict[_Claim, float] = {}  # claims that ask again, by when; few, and at most as old as PAUSE
        commands.on_ready(self)

    def claim(self, client_id: str, lasting: bool, will: bytes, then: Callable[[Verdict], None], now: float) -> None:
        """A CONNECT wants the session of *client_id*; *then* is called once, perhaps before this returns.

        *lasting*: it outlives its connection. *will*: as `will_record.encode()` makes it, or b"". What is CLAIMED is
        held until `release()`.
        """
        self.statistics.claims += 1
        claim = _Claim(self, client_id, lasting, will, then, now)
        if self._alone or before_asking(lasting, self._commands.unresponsive_for(now)) == WITHIN_NODE:
            claim.decide(LOCAL, 0, None)
        else:
            self._ask(claim, now)

    def has_room(self, now: float) -> bool:
        """Whether Redis would answer one more claim in time, or need not be asked."""
        return self._alone or self._gate.fits(1, 0) or self._commands.unresponsive_for(now) >= CLAIM_PATIENCE

    def next_epoch(self, client_id: str) -> int:
        """For a claim that Redis is not asked for: by our clock, and later than what we know."""
        return max(int(self._wall() * 1e6), self.epoch_of(client_id) + 1)

    def hold_locally(self, client_id: str, epoch: int, will: bytes) -> None:
        """The session was claimed within the node with *epoch*. Redis is told when it is back."""
        self.owned.hold_unknown(client_id, epoch, will)

    def release(self, client_id: str) -> None:
        """The session has ended, or went elsewhere. If somebody else has claimed it meanwhile, it stays theirs."""
        self.owned.release(client_id)

    def tell(self, now: float) -> None:
        """Have Redis know now what it is told soon in any case, unless it is being told something of that."""
        self.owned.go_on(now)

    def yield_to(self, client_id: str, epoch: int) -> bool:
        """Another worker says that it owns the session with *epoch*: true if that is later, and ours is given up."""
        return self.owned.yield_to(client_id, epoch)

    def leaves(self, client_id: str, will: bytes) -> None:
        """*client_id*, which is held, leaves *will*, and not what was claimed with it."""
        held = self.owned.get(client_id)
        if held is not None and held.will != will:
            self.owned.hold_unknown(client_id, held.epoch, will)

    def drop_will(self, client_id: str, now: float) -> bool:
        """The will of *client_id* was published or taken back: nobody else has to publish it. False: Redis is away."""
        return self.owned.drop_will(client_id, now)

    def epoch_of(self, client_id: str) -> int:
        """The epoch that this worker holds *client_id* with; 0 if it does not."""
        held = self.owned.get(client_id)
        return 0 if held is None else held.epoch

    def tick(self, now: float) -> float:
        """Do what is due; when the next thing will be."""
        due = now + LOOK
        again = self._again
        if again:
            for claim in [claim for claim, when in again.items() if when <= now]:
                del again[claim]
                self._ask(claim, now)
            due = min([due, *again.values()])
        if self._commands.state == READY:
            if now >= self._look:
                self._look_at_generation(now)
            if now >= self._renew:
                self._claim_all_again(now)
            self.owned.go_on(now)
            due = min(due, self._look)
        return due

    def redis_ready(self, now: float) -> None:
        """The line is there (again): the script first, then the generation, then all that we hold."""
        self._gate = Gate(self._overload, "", NO_RESOURCE, now)  # it may be another server, and be elsewhere
        self.script.load(now)
        self._commands.submit(_Begin(packed("SET", self._keys.generation, self._new_generation(), "NX"), PATIENCE), now)
        self._look_at_generation(now)
        if self._generation is not None:
            self._doubtful_until = now + DOUBT
        self._claim_all_again(now)

    def _ask(self, claim: "_Claim", now: float) -> None:
        client = claim.client_id.encode()
        keys = self._keys
        number, me = keys.slice_of(client), self._me.encode()
        words: list[str | bytes | int] = ["claim", LEASE, self._me, self._place, client, claim.will]
        command = self.script.call([keys.wills(number, me), keys.owner(client), keys.dead(number, me)], words)
        self._commands.submit(
            _ClaimStep(command, patience(claim.lasting, now - claim.since), claim, self._gate, now), now
        )

    def answered(self, claim: "_Claim", reply: object, now: float) -> None:
        epoch, named = epoch_and_owner(reply)
        former = claim.comes_after(named)
        ours = former is not None and former.worker == self.worker
        held = self.owned.get(claim.client_id)
        doubtful = ours or (former is None and now < self._doubtful_until)
        doubtful = doubtful and held is None and not self.owned.ended(claim.client_id)
        if ours:  # perhaps by an earlier CONNECT, whose claim came too late: then the session is still where it was
            former = self.owned.goes_back_to(claim.client_id) if held is None else None
        if held is None or held.epoch < epoch:
            self.owned.hold(claim.client_id, epoch, claim.will)
        else:  # claimed within the node by a clock that is ahead of Redis': that epoch stays
            epoch = held.epoch
            self.owned.hold_unknown(claim.client_id, epoch, claim.will)
        if former is not None:
            self.owned.drop_will_of(former, claim.client_id, now)
        claim.decide(CLAIMED, epoch, former, doubtful)

    def failed(self, claim: "_Claim", failure: StoreFailure, now: float) -> None:
        self.script.failed(failure, now)
        step = after_failure(failure, claim.lasting, now - claim.since)
        if step == ASK_AGAIN:
            self._again[claim] = now + PAUSE
        else:
            claim.decide(REFUSED if step == REFUSE else LOCAL, 0, None)

    def came_late(self, claim: "_Claim", reply: object, now: float) -> None:
        """Redis did what we had given up: what it wrote holds if the session is ours, and is else taken back."""
        epoch, named = epoch_and_owner(reply)
        former = claim.comes_after(named)
        if not claim.decided:
            return  # it has asked again, and that answer is the later one
        held = self.owned.get(claim.client_id)
        ours = former is not None and former.worker == self.worker
        if held is None:
            if former is None or not ours:
                self.owned.release_epoch(claim.client_id, epoch, "" if former is None else former.text())
            return  # ours by a claim nobody heard of: it stays, and who claims next will ask all, as we have nothing
        if held.epoch < epoch:
            held.epoch = epoch
        if former is not None and not ours:
            self.owned.found_conflict(OwnershipConflict(claim.client_id, former, held.epoch))

    def _claim_all_again(self, now: float) -> None:
        self._renew = now + RENEW
        self.owned.all_again()

    def _look_at_generation(self, now: float) -> None:
        self._look = now + LOOK
        self._commands.submit(_Look(self, packed("GET", self._keys.generation)), now)

    def generation_is(self, generation: object, now: float) -> None:
        """What Redis said when it was asked; None: it has lost everything while the line was up."""
        if generation is None:
            self._commands.submit(
                _Begin(packed("SET", self._keys.generation, self._new_generation(), "NX"), PATIENCE), now
            )
            self._look_at_generation(now)
        elif generation != self._generation:
            if self._generation is not None:
                self.statistics.forgotten += 1
                self._doubtful_until = now + DOUBT
                self._claim_all_again(now)
            self._generation = generation


class _Claim:
    """A CONNECT that waits for its session."""

    def __init__(
        self,
        registry: Registry,
        client_id: str,
        lasting: bool,
        will: bytes,
        then: Callable[[Verdict], None],
        since: float,
    ) -> None:
        self.registry = registry
        self.client_id = client_id
        self.lasting = lasting
        self.will = will
        self.since = since
        self.decided = False
        self._then = then
        self._heard = False
        self._former: Owner | None = None

    def comes_after(self, former: Owner | None) -> Owner | None:
        """Who had the session before all tries of this claim; *former*: before the one that Redis speaks of."""
        if not self._heard:
            self._heard = True
            self._former = former
        return self._former

    def decide(self, outcome: int, epoch: int, former: Owner | None, doubtful: bool = False) -> None:
        self.decided = True
        self.registry.statistics.outcomes[outcome] += 1
        self._then(Verdict(outcome, epoch, former, doubtful))


class _ClaimStep(Command):
    def __init__(self, command: bytes, patience: float, claim: _Claim, gate: Gate, now: float) -> None:
        super().__init__(command, patience)
        self.units = LETTING_IN
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


class _Begin(Command):
    """The generation is set, unless somebody was first. A look comes after it, and sees what came of it."""

    def replied(self, reply: object, now: float) -> None:
        pass

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        pass


class _Look(Command):
    """A look at the generation; if it fails, there will be another."""

    def __init__(self, registry: Registry, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._registry = registry

    def replied(self, reply: object, now: float) -> None:
        self._registry.generation_is(reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        pass
