# From which workers a worker has taken sessions by force lately, as they did not answer (cluster/forced_takeovers.py).
#
# Such a worker may go on, and refuses what is published for these sessions until it has heard all others. If the worker
# that has taken them dies before all have let go, whoever takes one of them from that worker has to know of it. Only
# Redis can tell that: the one that takes it now may have begun since, or may not have heard the one before.
#
# It is noted before the session is taken, and for the worker that takes it, not for each session. So publishers may
# have to send more again than is needed: also what is under way to the named workers for other sessions.
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, cast

from broker.reasons import StoreFailure
from broker.store.redis.connection import packed
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import CallbackCommand, Command

PATIENCE: Final = 60.0  # seconds, as for adoption
# Seconds after which all have let go: a worker that stands still has no lease after 10, and is settled or replaced.
NOTED_FOR: Final = 60

NOT_AGAIN: Final = (StoreFailure.MEMORY_FULL, StoreFailure.FORBIDDEN, StoreFailure.REFUSED)  # it might fail for ever


Formers = dict[int, bytes]  # by the incarnation of a worker: when a session was taken from it, Unix time


class Read(Protocol):
    def send(self, now: float) -> None: ...


class OwnersStore(Protocol):
    """What the notes need of the store."""

    def submit(self, command: Command, now: float) -> None: ...

    def not_read(self, read: Read, failure: StoreFailure, now: float) -> None:
        """Send *read* again, later."""
        ...

    def wall(self) -> float: ...


class ForcedOwners:
    def __init__(self, store: OwnersStore, keys: Keys, me: bytes, clock: Callable[[], float]) -> None:
        """*me*: the incarnation of this worker."""
        self.store: Final = store
        self.clock: Final = clock
        self._keys = keys
        self._me = me

    def find(self, owner: bytes, then: Callable[[Formers], None]) -> None:
        """Call *then* with the workers from which the one with the incarnation *owner* has taken sessions."""
        since = b"%.3f" % (self.store.wall() - NOTED_FOR)
        words = packed("ZRANGEBYSCORE", self._keys.forced(owner), since, "+inf", "WITHSCORES")
        _Asked(self, words, 1, lambda reply: then(_formers(reply))).send(self.clock())

    def note(self, former: bytes, others: Formers, then: Callable[[], None]) -> None:
        """This worker takes a session from the one with the incarnation *former*, which has taken it from *others*.

        *then* is called when Redis has noted that; or if it cannot, as it is full.
        """
        key = self._keys.forced(self._me)
        scores: list[bytes] = [b"%.3f" % self.store.wall(), former]
        for incarnation, since in others.items():
            scores += [since, b"%016x" % incarnation]
        words = packed("ZADD", key, "GT", *scores) + packed("EXPIRE", key, NOTED_FOR)
        _Asked(self, words, 2, lambda reply: then()).send(self.clock())


class _Asked:
    """A command whose reply is waited for."""

    def __init__(self, owners: ForcedOwners, words: bytes, replies: int, then: Callable[[object], None]) -> None:
        self._owners = owners
        self._words = words
        self._replies = replies
        self._then = then

    def send(self, now: float) -> None:
        command = CallbackCommand(self._words, PATIENCE, self._answered)
        command.replies_left = self._replies
        self._owners.store.submit(command, now)

    def _answered(self, reply: object, failure: StoreFailure | None) -> None:
        if failure is None or failure in NOT_AGAIN:
            self._then(reply)
        else:
            self._owners.store.not_read(self, failure, self._owners.clock())


def _formers(reply: object) -> Formers:
    found: Formers = {}
    parts = cast(list[bytes], reply or [])
    for incarnation, since in zip(parts[::2], parts[1::2], strict=True):
        with suppress(ValueError):  # no worker has written it
            found[int(incarnation, 16)] = since
    return found
