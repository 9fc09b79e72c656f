# The level of a worker: from its signals to what it reports, logs and enforces.
from pathlib import Path

import pytest

from broker.config.schema import Overload, Quotas, QuotaScope
from broker.overload.admit import ACCEPT, PAUSE
from broker.overload.monitor import PROTECTION_OFF
from broker.overload.reports import Report, decode
from broker.reasons import PauseReason
from broker.worker_id import WorkerId
from tests.overload.protected import HERE, Protected

LATE = 10.0  # seconds of lag, 200 targets


def test_a_worker_that_is_late_raises_its_level_and_enforces_credits() -> None:
    """Nobody would be slowed down, however late the worker is."""
    protected = Protected()
    protected.advance(1.0)
    assert (0.0, False) == (protected.monitor.level.value, protected.protection.judging)
    protected.lag = LATE
    protected.advance(1.0)

    assert protected.monitor.level.value > 4.0
    assert "lag" == protected.monitor.level.cause
    assert protected.protection.judging
    protected.lag = 0.0
    protected.advance(20.0)
    assert (0.0, False) == (protected.monitor.level.value, protected.protection.judging)


def test_the_level_of_another_worker_is_in_force_here_and_lapses() -> None:
    """Workers would not slow their clients for a worker that they overload; or for ever for one that has died."""
    protected = Protected()
    report = Report(WorkerId("far", 1, 1), 1, 5.5, "memory", 1.5, ())
    protected.protection.reports.hear(report.encode(), protected.now)
    protected.advance(0.2)
    assert (5.5, True) == (protected.protection.ledger.level, protected.protection.judging)
    assert 0.0 == protected.monitor.level.value
    protected.advance(1.2)

    assert (0.0, False) == (protected.protection.ledger.level, protected.protection.judging)


def test_a_level_is_told_and_logged_with_its_cause() -> None:
    """Other workers would not know, or an operator look in the wrong place."""
    protected = Protected()
    protected.lag = LATE
    protected.advance(1.0)
    last = decode(protected.told[-1])
    line = next(line for line in protected.log.lines if line["event"] == "overload_level_changed")

    assert (HERE, "lag") == (last.worker, last.cause)
    assert ("lag", "weir", 0) == (line["cause"], line["cause_node"], line["cause_worker"])
    protected.lag = 0.0
    protected.advance(20.0)
    assert 0 == protected.log.lines[-1]["reached"]


def test_a_node_that_answers_nothing_throttles_those_alone_that_publish_for_it() -> None:
    """With one node suspended, clients of all others would be slow."""
    protected = Protected(Overload(gate_floor=1))
    dead, near = protected.gate("far/0"), protected.gate("weir/1")
    needs, heavy = protected.client("needs"), protected.client("heavy")
    assert ACCEPT == protected.publish(needs, dead).kind
    protected.advance(5.0)

    assert 2 == protected.monitor.level.shown
    assert ("far/0", ("far/0",)) == (protected.monitor.level.cause, protected.protection.signals.contended)
    assert PauseReason.GATE is protected.publish(needs, dead).reason
    for _ in range(20):  # each costs what it may have saved
        assert ACCEPT == protected.publish(heavy, near, cost=int(protected.protection.ledger.cap)).kind
        near.done(1, 100, 0.001, protected.now)


def test_a_node_that_joins_is_told_as_the_cause_for_some_seconds() -> None:
    """An operator would find a level without a reason, or work without a level."""
    protected = Protected()
    client = protected.client("client")
    protected.protection.topology.changed(1, protected.now)
    protected.advance(0.5)
    told = decode(protected.told[-1])

    assert (1.0, "topology", 2.0, ()) == (told.level, told.cause, told.value, told.contended)
    for _ in range(20):
        assert ACCEPT == protected.publish(client, cost=int(protected.protection.ledger.cap)).kind
    protected.advance(Overload().topology + 0.5)
    assert (0.0, "") == (protected.monitor.level.value, protected.monitor.level.cause)


def test_a_test_can_set_a_signal_for_some_time() -> None:
    """The screens could not be shown, and `weir` be tested, without real overload."""
    protected = Protected()
    protected.monitor.inject("lag", LATE, protected.now + 1.0)
    assert {"lag": pytest.approx(1.0)} == protected.monitor.injected(protected.now)
    protected.advance(0.5)
    assert protected.monitor.level.value > 1.0
    protected.advance(0.6)
    assert {} == protected.monitor.injected(protected.now)
    protected.advance(20.0)
    assert 0.0 == protected.monitor.level.value
    with pytest.raises(ValueError, match="There is no signal 'log'"):
        protected.monitor.inject("log", 1.0, protected.now)


def test_protection_that_is_off_measures_and_enforces_nothing() -> None:
    """`overload.enabled = false` would slow clients down, or show no signals."""
    protected = Protected(Overload(enabled=False))
    protected.lag = LATE
    protected.advance(1.0)

    assert ["overload_protection_off"] == protected.log.events()
    assert protected.monitor.level.value > 4.0
    assert ([], 0.0) == (protected.told, protected.protection.ledger.level)
    assert not protected.protection.judging


def test_protection_that_is_off_still_bounds_memory_and_says_so() -> None:
    """Work would pile up before a slow worker without bound; or the log deny what throttles clients nevertheless."""
    quotas = Quotas(session=QuotaScope(incoming_messages="1:60"), reserve=0.0)
    protected = Protected(Overload(enabled=False, gate_floor=1), quotas)
    gate, waits, poor, limited = protected.gate(), *[protected.client(name) for name in ("waits", "poor", "limited")]
    gate.take(1, 10, protected.now)
    poor.account.zero = protected.protection.ledger.granted(protected.now) + 1000
    protected.lag = LATE
    protected.advance(1.0)
    assert PauseReason.GATE is protected.publish(waits, gate).reason
    assert ACCEPT == protected.publish(poor).kind
    assert [None, PauseReason.QUOTA_SESSION_MESSAGES] == [protected.publish(limited).reason for _ in range(2)]

    (line,) = [line for line in protected.log.lines if line["event"] == "overload_protection_off"]
    assert PROTECTION_OFF == line["means"]
    off = next(line for line in Path("deploy/weir.toml").read_text().splitlines() if "# false: credits" in line)
    for said in (PROTECTION_OFF, off):
        assert "credits throttle no client" in said and "gates" in said and "quotas" in said


def test_the_figures_count_clients_that_wait() -> None:
    """Prometheus would not show that clients are held."""
    protected = Protected(Overload(gate_floor=1))
    gate, client = protected.gate(), protected.client("client")
    gate.take(1, 10, protected.now)
    protected.publish(client, gate)
    figures = protected.monitor.figures(protected.now)

    assert (1, 0, 50_000) == (figures.throttled, figures.level, figures.credits_per_tick)
    assert "store" in figures.signals


def test_each_figure_of_hivemq_above_level_0() -> None:
    """An operator would read figures with another meaning than the terms have that they are named after."""
    quotas = Quotas(session=QuotaScope(incoming_messages="2:60"), reserve=0.0)
    protected = Protected(Overload(gate_floor=1), quotas)
    poor, waits, limited, idle = [protected.client(name) for name in ("poor", "waits", "limited", "idle")]
    protected.monitor.inject("lag", 0.1, protected.now + 60.0)  # 2 targets, so the level rises by 0.1 each 100 ms
    protected.advance(1.0)
    level, ledger = protected.monitor.level.value, protected.protection.ledger
    gate = protected.gate()
    gate.take(1, 10, protected.now)
    assert [ACCEPT, PAUSE] == [protected.publish(poor, cost=int(ledger.cap)).kind for _ in range(2)]
    assert PAUSE == protected.publish(waits, gate).kind
    assert [ACCEPT, ACCEPT, PAUSE] == [protected.publish(limited).kind for _ in range(3)]
    figures = protected.monitor.figures(protected.now)

    assert (1.0 < level < 2.0, 2, 2) == (True, figures.level, figures.cluster_level)
    assert int(ledger.refill) == figures.credits_per_tick < 50_000
    assert 2 == figures.using_credits  # poor and limited
    assert figures.average_credits == pytest.approx((3 * ledger.cap - 20) / 4, rel=0.01)
    assert 2 == figures.throttled  # poor and waits: a quota is no back-pressure
    assert idle.account.balance(ledger, protected.now) == ledger.cap
    assert ("lag", 2.0) == (figures.cause, figures.signals["lag"])
