# Authenticator: who a client is, before anything of it is done.
#
# A password is checked in a thread, as that takes milliseconds of C code; the connection is held meanwhile, and every
# other one is served. So the answer may come when the client is gone or the password file was replaced: whoever asked
# is told, and sees to the first, and the check is made again for the second.
#
# Checks that wait are bounded. Behind a thousand of them nobody would be answered before the deadline of its CONNECT,
# so further clients are told that we are busy; those whose password was verified before never wait here.
from collections.abc import Callable
from typing import Final

from broker.auth.failures import Failures
from broker.auth.passwords import Check, Passwords
from broker.mqtt.packets import Connect
from broker.net.offload import Offload
from broker.reasons import CloseReason

WAITING: Final = 1000  # checks that are not done: five seconds of a core with the iterations that we write


class Answer:
    """Who somebody is, or why we do not take it from them."""

    def __init__(self, reason: CloseReason | None, user: str | None = None) -> None:
        self.reason = reason
        self.user = user  # None: anonymous


class Authenticator:
    """*anonymous*: clients without a name may come in. Without *passwords* names are not looked at."""

    def __init__(
        self, offload: Offload, passwords: Passwords | None, *, anonymous: bool, certificate_user: bool
    ) -> None:
        self.failures = Failures()
        self._offload = offload
        self._passwords = passwords
        self._anonymous = anonymous
        self._certificate_user = certificate_user
        self._waiting = 0

    def replace(self, passwords: Passwords) -> Passwords | None:
        """*passwords* are in force from now on; those that were before."""
        former = self._passwords
        self._passwords = passwords
        return former

    def ask(self, identity: str, packet: Connect, then: Callable[[Answer], None]) -> Check | None:
        """Tell *then* who sent *packet*, at once or later: if later, the check that is under way.

        *identity* is the name in its verified certificate, "" without one.
        """
        if identity and self._certificate_user:
            then(Answer(None, identity))
            return None
        passwords = self._passwords
        if passwords is None:
            then(Answer(None))  # a name that nobody verified is none
            return None
        user = packet.user_name
        if user is None:
            then(Answer(None if self._anonymous else CloseReason.NOT_AUTHORIZED))
            return None
        password = packet.password or b""
        if passwords.knows(user, password):
            then(Answer(None, user))
            return None
        if self._waiting >= WAITING:
            then(Answer(CloseReason.SERVER_BUSY))
            return None
        self._waiting += 1
        check = passwords.check(user, password)
        self._offload.run(check, _Checked(self, passwords, identity, packet, then))
        return check

    def checked(
        self, passwords: Passwords, identity: str, packet: Connect, then: Callable[[Answer], None], result: object
    ) -> None:
        """The check of *packet*'s password against *passwords* came to *result*."""
        self._waiting -= 1
        user = packet.user_name
        if isinstance(result, Exception):
            then(Answer(CloseReason.INTERNAL_ERROR))
        elif passwords is not self._passwords:
            self.ask(identity, packet, then)
        elif result and user is not None:
            passwords.remember(user, packet.password or b"")
            then(Answer(None, user))
        else:
            then(Answer(CloseReason.BAD_CREDENTIALS))

    def statistics(self) -> tuple[int, int]:
        """(checks that are not done, addresses whose failures are remembered)."""
        return self._waiting, self.failures.statistics()


class _Checked:
    """What to do with the result of a check."""

    def __init__(
        self,
        authenticator: Authenticator,
        passwords: Passwords,
        identity: str,
        packet: Connect,
        then: Callable[[Answer], None],
    ) -> None:
        self._authenticator = authenticator
        self._passwords = passwords
        self._identity = identity
        self._packet = packet
        self._then = then

    def __call__(self, result: object) -> None:
        self._authenticator.checked(self._passwords, self._identity, self._packet, self._then, result)
