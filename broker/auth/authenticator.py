# The authenticator: who sent a CONNECT, decided before anything else is done for that client.
#
# The result of an authentication is `accepted(user)` or `refused(reason)`. Enhanced authentication of MQTT 5 needs a
# third kind of result, "send these bytes in an AUTH packet and go on with the client's answer"; the caller therefore
# decides by `AuthResult.kind`.
#
# A password is hashed in another thread, as hashing takes milliseconds of C code. The caller pauses the connection
# meanwhile and every other client is served. Until the hash is known the client may disconnect (the caller says so by
# `abandon()`), and the password file may be replaced (the authenticator then checks the password once more).
#
# Checks wait in fair queues (check_queue.py), and one is hashed at once: hashing must leave the loop its core. Wrong
# passwords have budgets (guesses.py), and a password over a budget is refused without a check. A password that was
# verified before needs no hash. But it is compared only while no other guess for that user waits: of a thousand
# guesses at once, each would otherwise be compared with the remembered password before any of them is counted.
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.auth.check_queue import CheckQueue, Waiting
from broker.auth.failures import Failures
from broker.auth.guesses import Guesses, Source
from broker.auth.passwords import Check, Passwords
from broker.config.schema import Access
from broker.metrics.counters import Counters
from broker.mqtt.packets import Connect
from broker.reasons import CloseReason

HASHED_AT_ONCE: Final = 1  # a second hash would take the core of another worker's loop
ANSWERED_AT_ONCE: Final = 16  # checks that need no hash and are answered in one go: about a millisecond

# Kinds of results.
ACCEPTED: Final = 0
REFUSED: Final = 1

# Runs the first callable in another thread, then calls the second one with the result, in the reactor's thread.
RunInThread = Callable[[Callable[[], object], Callable[[object], None]], None]


class AuthResult:
    """What an authentication came to."""

    def __init__(self, kind: int, user: str | None, reason: CloseReason | None) -> None:
        self.kind = kind
        self.user = user  # ACCEPTED: the verified name, None for an anonymous client
        self.reason = reason  # REFUSED: why


def accepted(user: str | None) -> AuthResult:
    return AuthResult(ACCEPTED, user, None)


def refused(reason: CloseReason) -> AuthResult:
    return AuthResult(REFUSED, None, reason)


class PendingCheck(Waiting):
    """The check of a password that waits or is under way."""

    def __init__(
        self, source: Source, key: str, lane: str, user: str, password: bytes, then: Callable[[AuthResult], None]
    ) -> None:
        """*key*: of the queue. *lane*: see `Guesses.lane()`."""
        super().__init__(key)
        self.source = source
        self.lane = lane
        self.user = user
        self.password = password
        self.then = then
        self.done = False  # `then` was called, or its client is gone
        self.check: Check | None = None  # in another thread


class Authenticator:
    def __init__(
        self,
        access: Access,
        passwords: Passwords | None,
        counters: Counters,
        run_in_thread: RunInThread,
        later: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
        workers: int = 1,
    ) -> None:
        """*later* calls a function in the reactor's thread, after what is to be done now. *workers* share the machine.

        Without *passwords* user names and passwords are not looked at: if certificates name the users, a client without
        a name in its certificate is refused, unless clients may be anonymous.
        """
        self.failures = Failures()
        self.guesses = Guesses(access.wrong_per_user, access.wrong_per_address, workers)
        self._run_in_thread = run_in_thread
        self._later = later
        self._passwords = passwords
        self._counters = counters
        self._clock = clock
        self._anonymous = access.allow_anonymous
        self._certificate_user = access.certificate_user
        self._queue = CheckQueue()
        self._lanes: dict[str, int] = {}  # checks that wait or are under way
        self._hashing = 0  # checks under way
        self._comes_again = False  # `later` will call `_come_again()`

    def replace(self, passwords: Passwords) -> Passwords | None:
        """Check against *passwords* from now on; return the passwords that were in force before."""
        former = self._passwords
        self._passwords = passwords
        return former

    def authenticate(
        self, identity: str, address: str, packet: Connect, then: Callable[[AuthResult], None]
    ) -> PendingCheck | None:
        """Find out who sent *packet* from *address* (host:port), and call *then* once with the result.

        *identity* is the name in the verified certificate of the client, "" without one. Returns None if *then* was
        called already. Otherwise returns the check that waits or is under way, for `abandon()`.
        """
        if identity and self._certificate_user:
            then(accepted(identity))
            return None
        passwords = self._passwords
        if passwords is None:  # an unverified name is not a user
            known = self._anonymous or not self._certificate_user
            then(accepted(None) if known else refused(CloseReason.NOT_AUTHORIZED))
            return None
        user = packet.user_name
        if user is None:
            then(accepted(None) if self._anonymous else refused(CloseReason.NOT_AUTHORIZED))
            return None
        source = Source(address, user)
        key = source.pair if self.guesses.trusted(source) else source.address
        pending = PendingCheck(source, key, self.guesses.lane(source), user, packet.password or b"", then)
        if pending.lane in self._lanes:
            reason = self.guesses.refusal(source, self._clock())
            if reason is not None:
                then(refused(reason))
                return None
        elif self._answered(passwords, pending):
            return None
        self._wait(pending)
        return None if pending.done else pending

    def abandon(self, pending: PendingCheck) -> None:
        """The client of *pending* is gone, and its `then` is not to be called."""
        pending.done = True
        if pending.check is not None:
            pending.check.abandoned = True
        elif pending.line is not None:
            self._queue.remove(pending)
            self._left(pending)

    def forget(self, now: float) -> None:
        """Forget the wrong passwords that do not count any more."""
        self.failures.forget(now)
        self.guesses.forget(now)

    def statistics(self) -> tuple[int, int]:
        """(checks that wait or are under way, addresses whose failures are remembered)."""
        return len(self._queue) + self._hashing, self.failures.statistics()

    def _wait(self, pending: PendingCheck) -> None:
        """Queue *pending*, whose client or another one is refused if the queue is full."""
        failing = pending.key == pending.source.address and self.guesses.failing(pending.source, self._clock())
        self._lanes[pending.lane] = self._lanes.get(pending.lane, 0) + 1
        displaced = self._queue.offer(pending, failing)
        if displaced is not None:
            assert isinstance(displaced, PendingCheck)
            self._left(displaced)
            _answer(displaced, refused(CloseReason.SERVER_BUSY))
        self._continue()

    def _continue(self) -> None:
        """Have as many checks hashed as may be at once. Those that need no hash are answered, some of them now."""
        for _ in range(ANSWERED_AT_ONCE):
            if self._hashing >= HASHED_AT_ONCE or not len(self._queue):
                return
            pending = self._queue.next()
            passwords = self._passwords
            assert isinstance(pending, PendingCheck) and passwords is not None
            if self._answered(passwords, pending):
                self._left(pending)
            else:
                self._hash(passwords, pending)
        if not self._comes_again:
            self._comes_again = True
            self._later(self._come_again)

    def _come_again(self) -> None:
        self._comes_again = False
        self._continue()

    def _answered(self, passwords: Passwords, pending: PendingCheck) -> bool:
        """Answer *pending* if that takes no hash."""
        reason = self.guesses.refusal(pending.source, self._clock())
        if reason is not None:
            _answer(pending, refused(reason))
        elif passwords.knows(pending.user, pending.password):
            self.guesses.right(pending.source)
            _answer(pending, accepted(pending.user))
        return pending.done

    def _hash(self, passwords: Passwords, pending: PendingCheck) -> None:
        self._hashing += 1
        self._counters.passwords_hashed += 1
        self.guesses.begin(pending.source, self._clock())
        pending.check = passwords.check(pending.user, pending.password)
        self._run_in_thread(pending.check, partial(self._checked, passwords, pending))

    def _checked(self, passwords: Passwords, pending: PendingCheck, result: object) -> None:
        """The check of *pending* against *passwords* returned *result*, or raised it."""
        self._hashing -= 1
        self._left(pending)
        pending.check = None
        guesses, source, now = self.guesses, pending.source, self._clock()
        if isinstance(result, Exception):
            guesses.give_back(source, now)
            _answer(pending, refused(CloseReason.INTERNAL_ERROR))
        elif passwords is not self._passwords:
            guesses.give_back(source, now)
            if not pending.done:
                self._wait(pending)
        elif result:
            guesses.give_back(source, now)
            guesses.right(source)
            passwords.remember(pending.user, pending.password)
            _answer(pending, accepted(pending.user))
        elif not pending.done:  # a client that has gone learns nothing: its guess counts, but not as a failure
            guesses.wrong(source, now)
            _answer(pending, refused(CloseReason.BAD_CREDENTIALS))
        self._continue()

    def _left(self, pending: PendingCheck) -> None:
        """*pending* neither waits nor is under way any more."""
        count = self._lanes[pending.lane] - 1
        if count:
            self._lanes[pending.lane] = count
        else:
            del self._lanes[pending.lane]


def _answer(pending: PendingCheck, result: AuthResult) -> None:
    """Call the `then` of *pending*, unless its client has gone."""
    if not pending.done:
        pending.done = True
        pending.then(result)
