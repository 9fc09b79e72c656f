# Whether a PUBLISH is accepted now: the one place where quotas, gates and credits meet.
#
# All three are tested before any is charged, so a publish that does not pass costs nothing and can be tried again.
# (What MQTT forbids never gets here: the connection was closed when the packet was read.) The order is the order of
# blame: a quota concerns the client alone, a closed gate holds up everybody who needs it, and credits decide who is
# held up first.
#
# A client without credits passes all the same while the gates that its publish needs have idle room and nothing else
# that it needs is contended: making it wait would help nobody. That holds at level 0 too. Credits return so quickly
# there that only the clients who ask for more than all others run out of them; these wait for each other, and a modest
# client finds a short queue (simulated: beside a client that floods, the p99 of the delay is 30 to 70 ms, not 100).
import math
from typing import Final, Protocol

from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.reasons import CloseReason, DropReason, PauseReason, PublishRefusal

Reason = DropReason | PauseReason | PublishRefusal | CloseReason

# Kinds of verdicts.
ACCEPT: Final = 0
DROP: Final = 1  # the publish, of QoS 0, is not delivered and not answered
PAUSE: Final = 2  # the publish is put off, and its client is not read, until a time or until a gate opens
REFUSE: Final = 3  # the publish is answered with a reason code
CLOSE: Final = 4
FILTER: Final = 5  # not about a publish: a filter is not subscribed to
SUBACK: Final = 6  # not about a publish: a SUBSCRIBE is answered, and something is to be known of that

NOT_WAITING: Final = math.inf
UNBOUNDED: Final = 1 << 30  # publishes
SHARE: Final = 1024 * 1024  # bytes under way at a gate up to which a run goes on
V5: Final = 5


class Verdict:
    def __init__(
        self, kind: int, reason: Reason | None, until: float = 0.0, gate: Gate | None = None, needed: int = 0
    ) -> None:
        self.kind = kind
        self.reason = reason
        self.until = until  # PAUSE: when the publish should pass, at the present level; 0: when *gate* has room
        self.gate = gate  # PAUSE: the gate to wait at; None: wait for the time
        self.needed = needed  # PAUSE for credits without a gate: the contended resources of the publish, as bits


class Publish:
    """What the decision about a PUBLISH depends on."""

    def __init__(self, version: int, qos: int, size: int, cost: int, resources: int) -> None:
        self.version = version  # as in CONNECT: 3, 4 or 5
        self.qos = qos
        self.size = size  # bytes
        self.cost = cost  # credits
        self.resources = resources  # that the publish needs, as bits
        self.since = NOT_WAITING  # or, if it was put off, since when it waits for gates and credits; for a quota: now
        self.exempt = False  # credits are counted and not enforced
        # To explain the cost:
        self.deliveries = 0
        self.persistent = 0  # of the receivers, those that store it
        self.retained = False


class Quotas(Protocol):
    """The quotas that hold for one client."""

    def test(self, publish: Publish, now: float) -> Verdict | None:
        """None if *publish* is within all quotas; it is not charged yet."""
        ...

    def charge(self, publish: Publish, now: float) -> None:
        """Charge *publish*, which was tested and is accepted."""
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
    """Decide about *publish*, which has to pass *gates*. An accepted publish is charged.

    *contended*: the resources that any worker reports as contended, as bits. *wait*: seconds after which a publish
    stops waiting for gates and credits.
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
        needed, full = _busy(publish, gates, contended if ledger.enforcing else 0)
        if needed or full is not None:
            until = account.when(ledger, publish.cost, now)
            return waits(publish, Verdict(PAUSE, PauseReason.CREDITS, until, full, needed), wait, now)
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
    """`admit()`, unless the gate *shut* holds up the publish for a reason that `admit()` does not know.

    A publish over quota does not wait there: it would be dropped or refused all the same.
    """
    if shut is not None:
        verdict = None if quotas is None else quotas.test(publish, now)
        return verdict or waits(publish, Verdict(PAUSE, PauseReason.GATE, 0.0, shut), wait, now)
    return admit(publish, account, ledger, gates, quotas, contended, wait, now)


def _busy(publish: Publish, gates: list[Gate], contended: int) -> tuple[int, Gate | None]:
    """(the contended resources of *publish* that no gate measures; if there is none, a gate without idle room)."""
    needed = publish.resources & contended
    full: Gate | None = None
    for gate in gates:
        needed &= ~gate.bit
        if not gate.calm:
            full = gate
    return needed, None if needed else full  # whether a resource without a gate is idle is not known


def following(
    gates: list[Gate], quota: int, account: Account, ledger: Ledger, longest: int, cost: int, exempt: bool, now: float
) -> int:
    """How many publishes of *longest* bytes and *cost* each may follow an accepted one at once.

    *quota*: how many the quotas leave. *exempt*: credits are not enforced for the client.
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
    """*pause*, or the verdict about a publish that has waited for *wait* seconds."""
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
