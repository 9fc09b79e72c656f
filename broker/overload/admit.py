# Whether a PUBLISH is taken now: the one place where quotas, gates and credits meet.
#
# All are tested before any is charged, so what does not pass costs nothing and can be tried again. (What MQTT forbids
# never gets here: who reads the packet has closed the connection.) The order is that of blame: a quota is the client's
# own affair; a closed gate holds back everybody who needs it; credits decide who is held back first.
#
# A client without credits is let on all the same while the gates that its publish needs have idle room, and what has
# no gate is not contended: to hold it back would help nobody. That holds at level 0 as well, where credits come back so
# quickly that only those run out of them who ask for more than all others: they wait for each other, and who asks for
# little finds a short queue (simulated: the p99 of the delay beside one who floods is 30 to 70 ms instead of 100).
import math
from typing import Final, Protocol

from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.reasons import CloseReason, DropReason, PauseReason, PublishRefusal

Reason = DropReason | PauseReason | PublishRefusal | CloseReason

# Kinds of verdicts.
ACCEPT: Final = 0
DROP: Final = 1  # nobody gets it, and it is not answered: it is of QoS 0
PAUSE: Final = 2  # it is not taken, and its connection not read, until a time or until a gate opens
REFUSE: Final = 3  # it is answered with a code
CLOSE: Final = 4
FILTER: Final = 5  # of no publish: a filter is not subscribed to

NOT_WAITING: Final = math.inf
UNBOUNDED: Final = 1 << 30  # publishes
SHARE: Final = 1024 * 1024  # bytes before a gate, to which a run goes on
V5: Final = 5


class Verdict:
    def __init__(self, kind: int, reason: Reason | None, until: float = 0.0, gate: Gate | None = None) -> None:
        self.kind = kind
        self.reason = reason
        self.until = until  # PAUSE: when it can pass at last, as things are; 0 = when *gate* has room
        self.gate = gate  # PAUSE: whose wait list to stand in; None = nothing but the time helps


class Publish:
    """What matters of a PUBLISH."""

    def __init__(self, version: int, qos: int, size: int, cost: int, resources: int) -> None:
        self.version = version  # as in CONNECT: 3, 4 or 5
        self.qos = qos
        self.size = size  # bytes
        self.cost = cost  # credits
        self.resources = resources  # bits
        self.since = NOT_WAITING  # or when it began to wait for a gate or for credits
        self.exempt = False  # overload protection is off for its client: credits are counted and hold nobody back
        # For whoever asks why it costs so much:
        self.deliveries = 0
        self.retained = False


class Quotas(Protocol):
    """The quotas that hold for one client."""

    def test(self, publish: Publish, now: float) -> Verdict | None:
        """None if *publish* is within all of them; it is not charged yet."""
        ...

    def charge(self, publish: Publish, now: float) -> None:
        """*publish*, which was tested, is taken."""
        ...


ACCEPTED: Final = Verdict(ACCEPT, None)


def admit(
    publish: Publish,
    account: Account,
    ledger: Ledger,
    gates: list[Gate],
    quotas: Quotas | None,
    contended: int,
    wait: float,
    now: float,
) -> Verdict:
    """Whether *publish*, which needs *gates*, is taken; if so, it is charged.

    *contended*: bits of the resources that are, anywhere; *wait*: seconds that it may wait, for gates and credits.
    """
    if quotas is not None:
        verdict = quotas.test(publish, now)
        if verdict is not None:
            return verdict
    for gate in gates:
        if not gate.fits(1, publish.size):
            return waits(publish, Verdict(PAUSE, PauseReason.GATE, 0.0, gate), wait, now)
    afforded = publish.exempt or account.passes(ledger, publish.cost, now)
    if not afforded:
        busy, gate_of_it = _busy(publish, gates, contended if ledger.enforcing else 0)
        if busy:
            until = account.when(ledger, publish.cost, now)
            return waits(publish, Verdict(PAUSE, PauseReason.CREDITS, until, gate_of_it), wait, now)
    _charge(publish, account, ledger, gates, afforded, now)
    if quotas is not None:
        quotas.charge(publish, now)
    return ACCEPTED


def decide(
    publish: Publish,
    account: Account,
    ledger: Ledger,
    gates: list[Gate],
    quotas: Quotas | None,
    shut: Gate | None,
    contended: int,
    wait: float,
    now: float,
) -> Verdict:
    """As `admit()`, unless one of its gates is *shut*, by something that is no publish."""
    if shut is not None:
        return waits(publish, Verdict(PAUSE, PauseReason.GATE, 0.0, shut), wait, now)
    return admit(publish, account, ledger, gates, quotas, contended, wait, now)


def _busy(publish: Publish, gates: list[Gate], contended: int) -> tuple[bool, Gate | None]:
    """Whether something that *publish* needs is contended or has no idle room, and the gate of it if that is all."""
    needed = publish.resources & contended
    full: Gate | None = None
    for gate in gates:
        needed &= ~gate.bit
        if not gate.calm:
            full = gate
    if needed:  # something without a gate, of which nobody can say that it is idle
        return True, None
    return full is not None, full


def following(
    gates: list[Gate], quota: int, account: Account, ledger: Ledger, longest: int, cost: int, exempt: bool, now: float
) -> int:
    """How many more like a publish that was just taken may follow it at once: of *longest* bytes and *cost* each.

    *quota*: so many as far as quotas go; *exempt*: credits hold its client not back.
    """
    room = quota
    idle = 0 if ledger.enforcing else UNBOUNDED
    for gate in gates:
        room = min(room, gate.room(), max(0, SHARE - gate.bytes) // longest)
        idle = min(idle, gate.idle_room())
    if room > idle and not exempt:
        room = min(room, max(idle, int(account.balance(ledger, now)) // cost))
    return room


def waits(publish: Publish, pause: Verdict, wait: float, now: float) -> Verdict:
    """*pause*, unless *publish* has waited for as long as it may."""
    if now - publish.since < wait:
        return pause
    if publish.qos == 0:
        return Verdict(DROP, DropReason.GATE_TIMEOUT)
    if publish.version == V5:
        return Verdict(REFUSE, PublishRefusal.GATE_TIMEOUT)
    return Verdict(CLOSE, CloseReason.GATE_TIMEOUT)


def _charge(publish: Publish, account: Account, ledger: Ledger, gates: list[Gate], afforded: bool, now: float) -> None:
    for gate in gates:
        gate.take(1, publish.size, now)
    if not ledger.enforcing:
        account.spent += publish.cost
    elif afforded and not publish.exempt:
        account.charge(ledger, publish.cost, now)
    else:
        account.charge_idle(ledger, publish.cost, now)
