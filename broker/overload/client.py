# A connected client as overload protection and quotas see it.
#
# The protocol layer derives a class from it that knows the connection. Overload protection itself knows no sockets: it
# decides about clients, and calls `pause()` and `resume()`.
from typing import Final

from broker.overload.admit import NOT_WAITING, Publish, Verdict
from broker.overload.credits import Account
from broker.overload.quotas.quota import Quota

ENDLESS: Final = 1 << 60  # bytes of a turn that has no end


class ProtectedClient:
    def __init__(self, client_id: str, user: str | None, version: int, account: Account) -> None:
        self.client_id = client_id
        self.user = user  # the verified name; None: anonymous
        self.version = version  # of MQTT, as in CONNECT
        self.account = account
        self.quota: Quota | None = None  # None: no quota concerns the client
        self.judging = False  # its publishes are judged, however calm the worker is: see `judge_if_needed()`
        self.exempt_until = 0.0  # credits do not throttle the client before this time; gates do
        self.throttled: Verdict | None = None  # the verdict for which the client is paused now
        self.put_off_since = NOT_WAITING  # when the packet that waits, or is tried again, was first put off
        self.waits_since = NOT_WAITING  # since when it waits for gates and credits: at most for `overload.wait` seconds
        self.turn = ENDLESS  # bytes that the client may publish before others that wait for the same gate
        self.judged: Publish | None = None  # the publish that was judged last

    def judge_if_needed(self) -> None:
        """Judge each publish if a quota concerns the client. Else judge only one that was put off, to end its wait."""
        self.judging = self.quota is not None or self.put_off_since != NOT_WAITING

    def pause(self) -> None:
        """Do not read from the client until `resume()`."""
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def writable(self, now: float) -> None:
        """An outgoing quota has room again: deliver what waits for the client."""
        raise NotImplementedError

    def note(self, kind: int, reason: str, now: float) -> bool:
        """Remember a decision about the client, of a kind of admit.py; false if it repeats the latest one."""
        raise NotImplementedError
