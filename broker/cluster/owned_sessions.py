# The sessions that this worker owns, and telling Redis of them again when it may not know.
#
# Redis may have been away, or have lost what it knew: the end of its log, a replica's lag, everything. So all that is
# held is claimed again, a page at a time, whenever the registry says `all_again()`; of two owners the later CONNECT
# stays, and the conflict is left for session_claims.py to settle.
# What is held is in two dicts: `_current`, and `_stale`, which Redis has to be told. That everything has become stale
# is then a matter of exchanging them, also for a million sessions. What ends while Redis is away is remembered, as a
# will that stayed there would be published when this worker dies.
from typing import Final

from broker.cluster.owner import Owner, Ownership, epoch_and_owner, read_owner
from broker.reasons import StoreFailure
from broker.store.redis.connection import READY
from broker.store.redis.keys import LEASE, SLICES, Keys
from broker.store.redis.pipeline import Command, CommandPipeline
from broker.store.redis.script import Script
from broker.worker_id import WorkerId

PATIENCE: Final = 5.0  # seconds for what no client waits for
PAGE: Final = 512  # sessions told of in one go: a million take two thousand pages, and none holds the loop for long
PAGE_BYTES: Final = 1024 * 1024  # of wills in it
REST: Final = 0.5  # seconds after Redis did not take a page
MOST_ENDED: Final = 100_000  # sessions that have ended and that Redis holds for ours; a lease ends the others


class OwnershipConflict:
    """Redis names *owner* as another owner of *client_id*, beside the answer to a claim."""

    def __init__(self, client_id: str, owner: Owner, ours: int) -> None:
        """*ours*: the epoch of this worker if it is the later owner; *owner* may not know. 0: *owner* is the later one,
        and this worker does not hold the session any more.
        """
        self.client_id = client_id
        self.owner = owner
        self.ours = ours


class OwnedSessionsStatistics:
    def __init__(self) -> None:
        self.held = 0
        self.stale = 0  # of those that are held
        self.ended = 0  # not held any more, and Redis does not know
        self.superseded = 0
        self.unreleased = 0  # ended in an outage, and too many to tell Redis of


class OwnedSessions:
    def __init__(
        self,
        commands: CommandPipeline,
        keys: Keys,
        script: Script,
        worker: WorkerId,
        alone: bool = False,
    ) -> None:
        """Who is *alone* finds other owners only among the dead."""
        self._counts = OwnedSessionsStatistics()
        self._commands = commands
        self._keys = keys
        self._script = script
        self._conflicts: list[OwnershipConflict] = []  # at most those of the pages that were answered in this turn
        self._me = worker.incarnation_text
        self._place = f"{worker.shard} {worker.node}"
        self._alone = alone
        self._current: dict[str, Ownership] = {}
        self._stale: dict[str, Ownership] = {}
        self._ended: dict[str, tuple[int, str]] = {}  # their epochs, and who is the owner again, or ""
        self._pages = 0  # parts of a page that are under way
        self._rest_until = 0.0

    def get(self, client_id: str) -> Ownership | None:
        return self._current.get(client_id) or self._stale.get(client_id)

    def hold(self, client_id: str, epoch: int, will: bytes) -> None:
        """Redis says that the session is ours."""
        self._stale.pop(client_id, None)
        self._current[client_id] = Ownership(epoch, will, True)

    def hold_unknown(self, client_id: str, epoch: int, will: bytes) -> None:
        """The session is ours, and Redis has to be told."""
        former = self._drop(client_id)
        self._stale[client_id] = Ownership(epoch, will, former is not None and former.told)

    def outdated(self, client_ids: list[str]) -> None:
        """Redis does not know what we hold of these."""
        for client_id in client_ids:
            held = self._current.pop(client_id, None)
            if held is not None:
                self._stale[client_id] = held

    def all_again(self) -> None:
        """Redis may not know what we hold of any."""
        if len(self._stale) < len(self._current):
            self._stale, self._current = self._current, self._stale
        self._stale.update(self._current)
        self._current = {}

    def release(self, client_id: str) -> None:
        """The session is not ours any more. If somebody else has claimed it meanwhile, it stays theirs."""
        held = self._drop(client_id)
        if held is not None and held.told:
            self.release_epoch(client_id, held.epoch)

    def ended(self, client_id: str) -> bool:
        """It was released, and Redis may not know."""
        return client_id in self._ended

    def goes_back_to(self, client_id: str) -> Owner | None:
        """Who is the owner again of what was claimed too late, which Redis may not know."""
        _, former = self._ended.get(client_id, (0, ""))
        return read_owner(former.encode())

    def release_epoch(self, client_id: str, epoch: int, former: str = "") -> None:
        """The same, of a claim with *epoch* that is not held; *former*: who is the owner again, as Redis has it."""
        self._ended[client_id] = (epoch, former)
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem()
            self._counts.unreleased += 1

    def yield_to(self, client_id: str, epoch: int) -> bool:
        """Another worker says that it owns the session with *epoch*: true if that is later, and ours is given up."""
        held = self.get(client_id)
        if held is None or held.epoch >= epoch:
            return False
        self._drop(client_id)
        if held.will:  # its key is ours: nobody else takes it away
            self.release_epoch(client_id, held.epoch)
        self._counts.superseded += 1
        return True

    def drop_will(self, client_id: str, now: float) -> bool:
        """The will of *client_id* was published or taken back: nobody else has to publish it. False: Redis is away."""
        held = self.get(client_id)
        if held is None or not held.will:
            return True
        held.will = b""
        if self._commands.state == READY:
            client = client_id.encode()
            wills = self._keys.wills(self._keys.slice_of(client), self._me.encode())
            command = self._script.call([wills], ["drop_wills", client, held.epoch])
            self._commands.submit(_DropWill(command, self, client_id), now)
            return True
        self.outdated([client_id])
        return False

    def drop_will_of(self, former: Owner, client_id: str, now: float) -> None:
        """*client_id* is ours now: what it left to be published when *former* dies, or has died, is taken back.

        Whoever mourns would find nobody who has the session, once it has ended here [MQTT-3.1.3-9].
        """
        client = client_id.encode()
        wills = self._keys.wills(self._keys.slice_of(client), former.worker.incarnation_text.encode())
        self._commands.submit(
            _DropFormerWill(self._script.call([wills], ["drop_wills", client, former.epoch]), PATIENCE), now
        )

    def found_conflict(self, conflict: OwnershipConflict) -> None:
        self._conflicts.append(conflict)

    def take_conflicts(self) -> list[OwnershipConflict]:
        """The conflicts since the last call, for session_claims.py to settle."""
        if not self._conflicts:
            return self._conflicts
        conflicts, self._conflicts = self._conflicts, []
        return conflicts

    def go_on(self, now: float) -> None:
        """Tell Redis the next page of what it has to be told, once the last one is answered."""
        if self._pages == 0 and self._commands.state == READY and now >= self._rest_until:
            if self._ended:
                self._release_page(now)
            if self._stale:
                self._claim_page(now)

    def statistics(self) -> OwnedSessionsStatistics:
        counts = self._counts
        counts.held = len(self._current) + len(self._stale)
        counts.stale = len(self._stale)
        counts.ended = len(self._ended)
        return counts

    def _drop(self, client_id: str) -> Ownership | None:
        return self._current.pop(client_id, None) or self._stale.pop(client_id, None)

    # Claiming again.

    def _claim_page(self, now: float) -> None:
        by_slice: list[list[str]] = [[] for _ in range(SLICES)]
        size = 0
        for _ in range(min(PAGE, len(self._stale))):
            client_id, held = self._stale.popitem()
            self._current[client_id] = held
            held.told = True
            size += len(held.will)
            by_slice[self._keys.slice_of(client_id.encode())].append(client_id)
            if size >= PAGE_BYTES:
                break
        for number, client_ids in enumerate(by_slice):
            if client_ids:
                self._claim_again(number, client_ids, now)

    def _claim_again(self, number: int, client_ids: list[str], now: float) -> None:
        keys = [self._keys.wills(number, self._me.encode())]
        words: list[str | bytes | int] = ["reclaim", LEASE, self._me, self._place]
        for client_id in client_ids:
            client = client_id.encode()
            held = self._current[client_id]
            keys.append(self._keys.owner(client))
            words += [client, held.epoch, held.will]
        keys.append(self._keys.dead(number, self._me.encode()))
        self._pages += 1
        self._commands.submit(_Reclaim(self._script.call(keys, words), self, client_ids), now)

    def claimed_again(self, client_ids: list[str], reply: object, now: float) -> None:
        assert isinstance(reply, list)
        self._pages -= 1
        for client_id, answer in zip(client_ids, reply, strict=True):
            epoch, other = epoch_and_owner(answer)
            held = self.get(client_id)
            if held is None:
                continue  # it was released after this was asked, and Redis was told in that order
            if epoch > held.epoch:
                held.epoch = epoch
            if other is None:
                continue
            if epoch:
                self.found_conflict(OwnershipConflict(client_id, other, held.epoch))
            elif self._alone:  # the clock was turned back since then
                self.hold_unknown(client_id, max(held.epoch, other.epoch + 1), held.will)
            elif other.epoch >= held.epoch:
                self._drop(client_id)
                self._counts.superseded += 1
                self.found_conflict(OwnershipConflict(client_id, other, 0))

    def not_claimed_again(self, client_ids: list[str], failure: StoreFailure, now: float) -> None:
        self._script.failed(failure, now)
        self._rest_until = now + REST
        self._pages -= 1
        self.outdated(client_ids)

    # Releasing.

    def _release_page(self, now: float) -> None:
        by_slice: list[dict[str, tuple[int, str]]] = [{} for _ in range(SLICES)]
        for _ in range(min(PAGE, len(self._ended))):
            client_id, end = self._ended.popitem()
            by_slice[self._keys.slice_of(client_id.encode())][client_id] = end
        for number, ended in enumerate(by_slice):
            if ended:
                self._release_in(number, ended, now)

    def _release_in(self, number: int, ended: dict[str, tuple[int, str]], now: float) -> None:
        """Release sessions of slice *number*."""
        keys = [self._keys.wills(number, self._me.encode())]
        words: list[str | bytes | int] = ["release", self._me]
        for client_id, (epoch, former) in ended.items():
            client = client_id.encode()
            keys.append(self._keys.owner(client))
            words += [client, epoch, former]
        self._pages += 1
        self._commands.submit(_Release(self._script.call(keys, words), self, ended), now)

    def released(self) -> None:
        self._pages -= 1

    def not_released(self, ended: dict[str, tuple[int, str]], failure: StoreFailure, now: float) -> None:
        self._script.failed(failure, now)
        self._rest_until = now + REST
        self._pages -= 1
        for client_id, (epoch, former) in ended.items():
            if client_id not in self._ended:
                self.release_epoch(client_id, epoch, former)


class _Reclaim(Command):
    def __init__(self, command: bytes, owned: OwnedSessions, client_ids: list[str]) -> None:
        super().__init__(command, PATIENCE)
        self._owned = owned
        self._client_ids = client_ids

    def replied(self, reply: object, now: float) -> None:
        self._owned.claimed_again(self._client_ids, reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._owned.not_claimed_again(self._client_ids, failure, now)


class _Release(Command):
    def __init__(self, command: bytes, owned: OwnedSessions, ended: dict[str, tuple[int, str]]) -> None:
        super().__init__(command, PATIENCE)
        self._owned = owned
        self._ended = ended

    def replied(self, reply: object, now: float) -> None:
        self._owned.released()

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._owned.not_released(self._ended, failure, now)


class _DropWill(Command):
    def __init__(self, command: bytes, owned: OwnedSessions, client_id: str) -> None:
        super().__init__(command, PATIENCE)
        self._owned = owned
        self._client_id = client_id

    def replied(self, reply: object, now: float) -> None:
        pass

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._owned.outdated([self._client_id])


class _DropFormerWill(Command):
    """If this fails the will is published should its time come after the session has ended here."""

    def replied(self, reply: object, now: float) -> None:
        pass

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        pass
