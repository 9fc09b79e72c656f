# The sessions that this worker owns, and claiming them again when Redis may not know.
#
# Redis may have been away, or have lost data: the end of its log, what a replica did not have yet, everything. So after
# `mark_all_stale()` all sessions that are held are claimed again, page by page. Of two owners the later CONNECT keeps
# the session, and the conflict is left for session_claims.py to settle.
# The sessions are in two dicts: `_current`, and `_stale`, which Redis has to be told. To mark all of them stale the
# dicts are exchanged, which takes no time for a million sessions. Sessions that end while Redis is away are remembered:
# a will that stayed in Redis would be published when this worker dies.
from typing import Final

from broker.cluster.owner import Owner, Ownership, epoch_and_owner, read_owner
from broker.reasons import StoreFailure
from broker.store.redis.connection import READY
from broker.store.redis.keys import LEASE, SLICES, Keys
from broker.store.redis.pipeline import Command, CommandPipeline
from broker.store.redis.script import Script
from broker.worker_id import WorkerId

TIMEOUT: Final = 5.0  # seconds for commands that no client waits for
PAGE: Final = 512  # sessions: a million take two thousand pages, and no page holds the loop for long
PAGE_BYTES: Final = 1024 * 1024  # of wills in a page
PAUSE: Final = 0.5  # seconds after a page that failed
MOST_ENDED: Final = 100_000  # ended sessions that Redis has to be told of; the lease ends the others


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
        self.stale = 0  # of the sessions that are held
        self.ended = 0  # released here, and Redis has not been told
        self.superseded = 0  # given up, as another worker has the later claim
        self.unreleased = 0  # ended in an outage, and beyond MOST_ENDED


class OwnedSessions:
    def __init__(
        self,
        commands: CommandPipeline,
        keys: Keys,
        script: Script,
        worker: WorkerId,
        alone: bool = False,
    ) -> None:
        """*alone*: no other worker registers sessions, so any other owner that Redis names is dead."""
        self._counts = OwnedSessionsStatistics()
        self._commands = commands
        self._keys = keys
        self._script = script
        self._conflicts: list[OwnershipConflict] = []  # of the pages that were answered in this turn
        self._me = worker.incarnation_text
        self._place = f"{worker.shard} {worker.node}"
        self._alone = alone
        self._current: dict[str, Ownership] = {}
        self._stale: dict[str, Ownership] = {}
        self._ended: dict[str, tuple[int, str]] = {}  # by client id: epoch, and the owner to be restored, or ""
        self._unanswered = 0  # parts of a page
        self._paused_until = 0.0

    def get(self, client_id: str) -> Ownership | None:
        return self._current.get(client_id) or self._stale.get(client_id)

    def hold(self, client_id: str, epoch: int, user: str, will: bytes) -> None:
        """This worker owns the session, and Redis knows. *user*: the tag of its user."""
        self._stale.pop(client_id, None)
        self._current[client_id] = Ownership(epoch, user, will, True)

    def hold_stale(self, client_id: str, epoch: int, user: str, will: bytes) -> None:
        """This worker owns the session, and Redis has to be told. *user*: the tag of its user."""
        former = self._drop(client_id)
        self._stale[client_id] = Ownership(epoch, user, will, former is not None and former.told)

    def mark_stale(self, client_ids: list[str]) -> None:
        """Redis may not know that this worker owns the sessions of *client_ids*."""
        for client_id in client_ids:
            held = self._current.pop(client_id, None)
            if held is not None:
                self._stale[client_id] = held

    def mark_all_stale(self) -> None:
        """Redis may not know any session of this worker."""
        if len(self._stale) < len(self._current):
            self._stale, self._current = self._current, self._stale
        self._stale.update(self._current)
        self._current = {}

    def release(self, client_id: str) -> None:
        """This worker does not own the session any more. If another worker has claimed it since, that claim stays."""
        held = self._drop(client_id)
        if held is not None and held.told:
            self.release_epoch(client_id, held.epoch)

    def give_back(self, client_id: str, former: str) -> None:
        """This worker does not own the session, as before its last claim: *former* is the text of the owner then."""
        held = self._drop(client_id)
        if held is not None and held.told:
            self.release_epoch(client_id, held.epoch, former)

    def may_forget(self, client_id: str) -> bool:
        """Whether Redis knows all that this worker knows of the owner of the session."""
        return client_id not in self._stale

    def forget(self, client_id: str) -> None:
        """The session is in Redis alone, still that of this worker: who claims it next finds it there (claim.lua)."""
        self._current.pop(client_id, None)

    def ended(self, client_id: str) -> bool:
        """Whether the session was released, and Redis may not know."""
        return client_id in self._ended

    def restored_owner(self, client_id: str) -> Owner | None:
        """The owner to be restored for a claim that Redis carried out too late; Redis may not know yet."""
        _, former = self._ended.get(client_id, (0, ""))
        return read_owner(former.encode())

    def release_epoch(self, client_id: str, epoch: int, former: str = "") -> None:
        """Release a claim with *epoch* that is not held; *former*: the text of the owner to be restored, or ""."""
        self._ended[client_id] = (epoch, former)
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem()
            self._counts.unreleased += 1

    def yield_to(self, client_id: str, epoch: int) -> bool:
        """Give the session up if *epoch*, with which another worker owns it, is the later one; true if it is."""
        held = self.get(client_id)
        if held is None or held.epoch >= epoch:
            return False
        self._drop(client_id)
        if held.will:  # it is under the incarnation of this worker: no other worker deletes it
            self.release_epoch(client_id, held.epoch)
        self._counts.superseded += 1
        return True

    def drop_will(self, client_id: str, now: float) -> bool:
        """The will of *client_id* was published or withdrawn: delete it in Redis. False: Redis is away."""
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
        self.mark_stale([client_id])
        return False

    def drop_will_of(self, former: Owner, client_id: str, now: float) -> None:
        """This worker owns *client_id* now: withdraw the will that is stored for the death of *former*.

        Once the session has ended here, nothing else would tell that the client came back in time [MQTT-3.1.3-9].
        """
        client = client_id.encode()
        wills = self._keys.wills(self._keys.slice_of(client), former.worker.incarnation_text.encode())
        self._commands.submit(
            _DropFormerWill(self._script.call([wills], ["drop_wills", client, former.epoch]), TIMEOUT), now
        )

    def found_conflict(self, conflict: OwnershipConflict) -> None:
        self._conflicts.append(conflict)

    def take_conflicts(self) -> list[OwnershipConflict]:
        """The conflicts since the last call, for session_claims.py to settle."""
        if not self._conflicts:
            return self._conflicts
        conflicts, self._conflicts = self._conflicts, []
        return conflicts

    def send_page(self, now: float) -> None:
        """Send Redis the next page of what it has to be told, once the last page is answered."""
        if self._unanswered == 0 and self._commands.state == READY and now >= self._paused_until:
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
            words += [client, held.epoch, held.user, held.will]
        keys.append(self._keys.dead(number, self._me.encode()))
        self._unanswered += 1
        self._commands.submit(_Reclaim(self._script.call(keys, words), self, client_ids), now)

    def claimed_again(self, client_ids: list[str], reply: object, now: float) -> None:
        assert isinstance(reply, list)
        self._unanswered -= 1
        for client_id, answer in zip(client_ids, reply, strict=True):
            epoch, other = epoch_and_owner(answer)
            held = self.get(client_id)
            if held is None:
                continue  # released since; Redis gets the release after this page
            if epoch > held.epoch:
                held.epoch = epoch
            if other is None:
                continue
            if epoch:
                self.found_conflict(OwnershipConflict(client_id, other, held.epoch))
            elif self._alone:  # the clock of Redis was set back
                self.hold_stale(client_id, max(held.epoch, other.epoch + 1), held.user, held.will)
            elif other.epoch >= held.epoch:
                self._drop(client_id)
                self._counts.superseded += 1
                self.found_conflict(OwnershipConflict(client_id, other, 0))

    def not_claimed_again(self, client_ids: list[str], failure: StoreFailure, now: float) -> None:
        self._script.failed(failure, now)
        self._paused_until = now + PAUSE
        self._unanswered -= 1
        self.mark_stale(client_ids)

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
        self._unanswered += 1
        self._commands.submit(_Release(self._script.call(keys, words), self, ended), now)

    def released(self) -> None:
        self._unanswered -= 1

    def not_released(self, ended: dict[str, tuple[int, str]], failure: StoreFailure, now: float) -> None:
        self._script.failed(failure, now)
        self._paused_until = now + PAUSE
        self._unanswered -= 1
        for client_id, (epoch, former) in ended.items():
            if client_id not in self._ended:
                self.release_epoch(client_id, epoch, former)


class _Reclaim(Command):
    def __init__(self, command: bytes, owned: OwnedSessions, client_ids: list[str]) -> None:
        super().__init__(command, TIMEOUT)
        self._owned = owned
        self._client_ids = client_ids

    def replied(self, reply: object, now: float) -> None:
        self._owned.claimed_again(self._client_ids, reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._owned.not_claimed_again(self._client_ids, failure, now)


class _Release(Command):
    def __init__(self, command: bytes, owned: OwnedSessions, ended: dict[str, tuple[int, str]]) -> None:
        super().__init__(command, TIMEOUT)
        self._owned = owned
        self._ended = ended

    def replied(self, reply: object, now: float) -> None:
        self._owned.released()

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._owned.not_released(self._ended, failure, now)


class _DropWill(Command):
    def __init__(self, command: bytes, owned: OwnedSessions, client_id: str) -> None:
        super().__init__(command, TIMEOUT)
        self._owned = owned
        self._client_id = client_id

    def replied(self, reply: object, now: float) -> None:
        pass

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._owned.mark_stale([self._client_id])


class _DropFormerWill(Command):
    """If this fails, the will is published if the session has ended here before the delay of the will has passed."""

    def replied(self, reply: object, now: float) -> None:
        pass

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        pass
