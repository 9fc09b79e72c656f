# The authenticator: who sent a CONNECT, decided before anything else is done for that client.
#
# The result of an authentication is `accepted(user)` or `refused(reason)`. Enhanced authentication of MQTT 5 needs a
# third kind of result, "send these bytes in an AUTH packet and go on with the client's answer"; the caller therefore
# decides by `AuthResult.kind`.
#
# A password is hashed in another thread, as hashing takes milliseconds of C code. The caller pauses the connection
# meanwhile and every other client is served. Until the hash is known the client may disconnect (the caller has to
# test that), and the password file may be replaced (the authenticator then checks the password once more).
#
# The number of checks under way is bounded. Behind 1000 checks no client would be answered before the deadline of its
# CONNECT, so further clients are refused as "server busy". A password that was verified before needs no check.
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.auth.failures import Failures
from broker.auth.passwords import Check, Passwords
from broker.mqtt.packets import Connect
from broker.reasons import CloseReason

WAITING: Final = 1000  # checks under way: five seconds of one core with the iterations that `weir passwd` writes

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


class Authenticator:
    def __init__(
        self, run_in_thread: RunInThread, passwords: Passwords | None, *, anonymous: bool, certificate_user: bool
    ) -> None:
        """*anonymous*: a CONNECT without a user name is accepted. *certificate_user*: the name in a verified
        certificate is the user name. Without *passwords* user names and passwords are not looked at.
        """
        self.failures = Failures()
        self._run_in_thread = run_in_thread
        self._passwords = passwords
        self._anonymous = anonymous
        self._certificate_user = certificate_user
        self._waiting = 0

    def replace(self, passwords: Passwords) -> Passwords | None:
        """Check against *passwords* from now on; return the passwords that were in force before."""
        former = self._passwords
        self._passwords = passwords
        return former

    def authenticate(self, identity: str, packet: Connect, then: Callable[[AuthResult], None]) -> Check | None:
        """Find out who sent *packet*, and call *then* once with the result.

        *identity* is the name in the verified certificate of the client, "" without one. Returns None if *then* was
        called already. Otherwise returns the check that is under way; its caller may set `abandoned`.
        """
        if identity and self._certificate_user:
            then(accepted(identity))
            return None
        passwords = self._passwords
        if passwords is None:
            then(accepted(None))  # an unverified name is not a user
            return None
        user = packet.user_name
        if user is None:
            then(accepted(None) if self._anonymous else refused(CloseReason.NOT_AUTHORIZED))
            return None
        password = packet.password or b""
        if passwords.knows(user, password):
            then(accepted(user))
            return None
        if self._waiting >= WAITING:
            then(refused(CloseReason.SERVER_BUSY))
            return None
        self._waiting += 1
        check = passwords.check(user, password)
        self._run_in_thread(check, partial(self._checked, passwords, identity, packet, then))
        return check

    def _checked(
        self, passwords: Passwords, identity: str, packet: Connect, then: Callable[[AuthResult], None], result: object
    ) -> None:
        """The check of the password in *packet* against *passwords* returned *result*, or raised it."""
        self._waiting -= 1
        user = packet.user_name
        if isinstance(result, Exception):
            then(refused(CloseReason.INTERNAL_ERROR))
        elif passwords is not self._passwords:
            self.authenticate(identity, packet, then)
        elif result and user is not None:
            passwords.remember(user, packet.password or b"")
            then(accepted(user))
        else:
            then(refused(CloseReason.BAD_CREDENTIALS))

    def statistics(self) -> tuple[int, int]:
        """(checks under way, addresses whose failures are remembered)."""
        return self._waiting, self.failures.statistics()
