from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.schema import Overload
from broker.overload.admit import ACCEPT, ACCEPTED, CLOSE, DROP, PAUSE, REFUSE, Publish, Quotas, Verdict, admit
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.reasons import CloseReason, DropReason, PauseReason, PublishRefusal

SETTINGS = Overload(gate_floor=2)
STORE, PEER, CPU = 1, 2, 4


class OneQuota:
    """A quota of some publishes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def test(self, publish: Publish, now: float) -> Verdict | None:
        return None if self.left else Verdict(PAUSE, PauseReason.GATE, 7.0)

    def charge(self, publish: Publish, now: float) -> None:
        self.left -= 1


@dataclass
class World:
    """A client without credits at level 5, whose publishes need a store and a peer."""

    level: float = 5.0
    balance: float = 0.0
    quotas: Quotas | None = None
    contended: int = STORE
    publish: Publish = field(default_factory=lambda: Publish(5, 1, 100, 40, STORE | PEER))

    def __post_init__(self) -> None:
        self.ledger = Ledger(SETTINGS, 0.0)
        self.ledger.change(self.level, 0.0)
        self.account = Account("one", -self.balance)
        self.store, self.peer = Gate(SETTINGS, "store", STORE, 0.0), Gate(SETTINGS, "weir/2", PEER, 0.0)

    def judge(self, now: float = 0.0) -> Verdict:
        gates = [self.store, self.peer]
        return admit(self.publish, self.account, self.ledger, gates, self.quotas, self.contended, 30.0, now)

    def fill(self, gate: Gate) -> None:
        gate.take(2, 0, 0.0)

    def charged(self) -> tuple[float, int, int, int]:
        """(balance, spent at level 0, publishes under way to the store, and to the peer)"""
        balance = self.account.balance(self.ledger, 0.0)
        return round(balance, 6), self.account.spent, self.store.count, self.peer.count


def busy_store() -> Gate:
    """Contended, with room and without idle room: nothing but credits let a publish on."""
    gate = Gate(Overload(gate_floor=1), "store", STORE, 0.0)
    gate.take(10, 0, 0.0)
    gate.done(10, 0, 0.1, 0.1)
    gate.take(13, 0, 0.2)
    assert (0, True) == (gate.idle_room(), gate.fits(1, 100))
    return gate


def test_an_accepted_publish_is_charged_everywhere() -> None:
    """What it costs would be counted in some places only."""
    quota = OneQuota(1)
    world = World(balance=100.0, quotas=quota)

    assert ACCEPTED is world.judge()
    assert ((60.0, 0, 1, 1), 0) == (world.charged(), quota.left)


@pytest.mark.parametrize("closed", ["quota", "store", "peer", "credits"])
def test_a_publish_that_does_not_pass_is_charged_nowhere(closed: str) -> None:
    """Each attempt of a publish that waits would cost as if it had passed."""
    quota = OneQuota(0 if closed == "quota" else 1)
    world = World(balance=0.0 if closed == "credits" else 100.0, quotas=quota)
    if closed == "credits":
        world.store = busy_store()
    elif closed != "quota":
        world.fill(world.store if closed == "store" else world.peer)
    before = (world.charged(), quota.left)

    assert PAUSE == world.judge().kind
    assert before == (world.charged(), quota.left)


def test_the_order_is_quota_gates_credits() -> None:
    """`weir why` would blame the store where the client's own quota holds it."""
    world = World(quotas=OneQuota(0))
    world.fill(world.peer)
    world.store = busy_store()

    by_quota = world.judge()
    world.quotas = None
    by_gate = world.judge()
    world.peer.done(2, 0, 0.1, 0.1)
    world.publish.cost = 450
    by_credits = world.judge()

    assert 7.0 == by_quota.until
    assert (PauseReason.GATE, 0.0, world.peer) == (by_gate.reason, by_gate.until, by_gate.gate)
    assert (PauseReason.CREDITS, world.store) == (by_credits.reason, by_credits.gate)
    assert by_credits.until == pytest.approx(450 * 0.2 / 1500, abs=0.002)


def test_who_does_not_need_what_is_contended_passes_without_credits() -> None:
    """A slow store would slow down those who do not use it."""
    world = World(contended=CPU)

    assert ACCEPTED is world.judge()


def test_a_contended_resource_with_idle_room_lets_everybody_on_and_leaves_no_debt() -> None:
    """Clients would be held back beside a resource that has nothing to do."""
    world = World()

    assert ACCEPTED is world.judge()
    assert (0.0, 0, 1, 1) == world.charged()


def test_where_there_is_no_gate_nothing_but_credits_helps() -> None:
    """A worker short of memory would let everybody on as if it were idle."""
    world = World(contended=CPU)
    world.publish.resources |= CPU

    verdict = world.judge()

    assert (PAUSE, PauseReason.CREDITS, None) == (verdict.kind, verdict.reason, verdict.gate)
    assert ACCEPTED is world.judge(verdict.until)


def test_at_level_0_everything_is_counted_and_nothing_contended_but_a_queue_holds_back() -> None:
    """A broker with nothing to do would slow clients down."""
    world = World(level=0.0, contended=CPU)
    world.publish.resources |= CPU

    assert ACCEPTED is world.judge()
    assert 40 == world.charged()[1]


def test_at_level_0_who_asks_for_more_than_all_others_does_not_lengthen_a_queue() -> None:
    """Who asks for little would wait behind it, until the overload is noticed."""
    heavy = World(level=0.0)
    modest = World(level=0.0, balance=1000.0)
    heavy.store = modest.store = busy_store()

    verdict = heavy.judge()

    assert (PAUSE, PauseReason.CREDITS, heavy.store) == (verdict.kind, verdict.reason, verdict.gate)
    assert ACCEPTED is modest.judge()
    assert ACCEPTED is heavy.judge(verdict.until)


@pytest.mark.parametrize(
    ("version", "qos", "kind", "reason"),
    [
        (3, 0, DROP, DropReason.GATE_TIMEOUT),
        (4, 0, DROP, DropReason.GATE_TIMEOUT),
        (5, 0, DROP, DropReason.GATE_TIMEOUT),
        (3, 1, CLOSE, CloseReason.GATE_TIMEOUT),
        (4, 2, CLOSE, CloseReason.GATE_TIMEOUT),
        (5, 1, REFUSE, PublishRefusal.GATE_TIMEOUT),
        (5, 2, REFUSE, PublishRefusal.GATE_TIMEOUT),
    ],
)
@pytest.mark.parametrize("held_by", ["gate", "credits"])
def test_a_wait_ends_as_the_version_and_the_qos_allow(
    version: int, qos: int, kind: int, reason: object, held_by: str
) -> None:
    """A client would wait for ever, or be answered with what its version does not know."""
    world = World(publish=Publish(version, qos, 100, 40, STORE | PEER), balance=-1e9)
    world.store = busy_store()
    if held_by == "gate":
        world.fill(world.peer)
    world.publish.since = 10.0

    assert PAUSE == world.judge(39.9).kind
    verdict = world.judge(40.0)
    assert (kind, reason) == (verdict.kind, verdict.reason)


def test_a_quota_may_hold_for_longer_than_a_gate() -> None:
    """A client whose quota is one publish a minute would be closed for keeping to it."""
    world = World(quotas=OneQuota(0))
    world.publish.since = 0.0

    assert PAUSE == world.judge(100.0).kind


@given(
    st.floats(0.1, 10.0),
    st.floats(-100.0, 5000.0),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 7),
    st.integers(1, 5000),
)
def test_an_exempt_client_is_let_on_where_others_are_and_where_only_credits_hold_them(
    level: float, balance: float, quota: bool, full: bool, busy: bool, contended: int, cost: int
) -> None:
    """The override of one client would let it past quotas, or fill what is bounded."""
    verdicts = []
    for exempt in (False, True):
        world = World(level=level, balance=balance, quotas=OneQuota(1 if quota else 0), contended=contended)
        world.publish.cost = cost
        world.publish.exempt = exempt
        if full:
            world.fill(world.peer)
        if busy:
            world.store = busy_store()
        verdicts.append(world.judge())
        assert world.account.balance(world.ledger, 0.0) >= min(balance, -cost)

    plain, exempted = verdicts
    if plain.reason is PauseReason.CREDITS:
        assert ACCEPT == exempted.kind
    else:
        assert (plain.kind, plain.reason) == (exempted.kind, exempted.reason)
