# A backtest beside the workers that recorded: what it says happened is what they counted, to the last bit.
import tempfile
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analytics.backtest.outcome import Outcome, unpacked
from analytics.backtest.play import BadTrace, Played, play
from analytics.backtest.policy import Policy, read_policy
from analytics.backtest.run import backtest, in_processes, run_locally
from analytics.backtest.words import weak
from broker.config.schema import ConfigError, Quotas
from tests.inprocess import Broker
from tests.protocol.test_trace_recorder import QUOTA, TIGHT, Load, loads

BY_PUBLISHES = ("credits", "gate", "quota_session_messages")  # reasons for which who publishes is held
AGGRESSOR: list[tuple[Any, ...]] = [  # client 0 floods a worker that is behind, client 1 is modest
    ("publish", 1, b"here", 1, 10, 1),
    ("inject", 0, "lag", 0.2, 3.0),
    *[("publish", 0, b"here", 0, 900, 60), ("publish", 1, b"here", 1, 10, 1), ("pass", 20)] * 12,
    ("pass", 240),
]
STOPPED: list[tuple[Any, ...]] = [  # quota, credits and a closed gate, and what waits for too long
    ("publish", 0, b"here", 0, 100, 60),
    ("inject", 0, "lag", 1.0, 3.0),
    ("advance", 6),
    ("publish", 1, b"here", 1, 100, 60),
    ("publish", 2, b"nowhere", 0, 10, 60),
    ("stop", True),
    ("publish", 0, b"there", 0, 900, 20),
    ("publish", 1, b"there", 2, 900, 20),
    ("advance", 12),
    ("stop", False),
    ("advance", 12),
]


def record(folder: Path, load: list[tuple[Any, ...]], quotas: Quotas) -> list[Broker]:
    """Traces "0" and "1" in *folder*, and the workers that recorded them."""
    running = Load(folder, quotas)
    for what, *how in load:
        if what == "pass":
            for _ in range(how[0]):  # as finely as a worker looks at who waits
                running.node.clock.now += 0.01
                running.node.settle()
        else:
            running.do(what, *how)
    for broker in running.node.workers:
        broker.stopped = False
    running.node.advance(0.2)  # a last step of the level, up to which both count
    for broker in running.node.workers:
        broker.interval_metrics.pauses.close_interval(broker.clock.now)
    workers = list(running.node.workers)
    running.traces(folder)
    return workers


def paused(broker: Broker) -> dict[str, float]:
    """Seconds that clients were held, as their worker told the heavy hitters."""
    return {str(one.key): one.paused / 1e6 for one in broker.interval_metrics.clients.top(100) if one.paused}


def check(played: Played, broker: Broker) -> None:
    """What is recorded is what the worker counted."""
    counters, outcome = broker.counters, played.recorded
    assert 0 == played.different
    held = {reason: seconds for reason, seconds in outcome.held_s.items() if seconds > 1e-3}
    counted = {reason: counters.paused_ms_by_reason[reason] / 1e3 for reason in BY_PUBLISHES}
    assert {reason: seconds for reason, seconds in counted.items() if seconds > 1e-3} == pytest.approx(held, abs=2e-3)
    clients = {client: seconds for client, seconds in outcome.clients.items() if seconds > 1e-6}
    assert paused(broker) == pytest.approx(clients, abs=1e-4)
    for reason, count in outcome.dropped.items():
        assert counters.dropped_by_reason[reason] == count
    turned_away = sum(sum(each.values()) for each in (outcome.dropped, outcome.refused, outcome.closed))
    assert counters.publishes_received == outcome.accepted + turned_away
    assert outcome.publishes == outcome.accepted + turned_away + outcome.lost + outcome.waiting


@settings(max_examples=25, deadline=None)
@given(loads, st.booleans())
@example(STOPPED, True)
@example(AGGRESSOR, False)
def test_who_was_held_for_how_long_is_what_the_worker_counted(load: list[tuple[Any, ...]], limited: bool) -> None:
    """A policy would be compared with something that has not happened."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workers = record(folder, load, QUOTA if limited else Quotas())

        for number, worker in enumerate(workers):
            played = play(folder / str(number), None, check=True)
            check(played, worker)
            estimate = played.estimate
            assert estimate is not None
            turned_away = sum(sum(each.values()) for each in (estimate.dropped, estimate.refused, estimate.closed))
            assert estimate.publishes == estimate.accepted + turned_away + estimate.lost + estimate.waiting


@pytest.fixture(scope="module")
def aggressor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a worker that one client floods."""
    folder = tmp_path_factory.mktemp("aggressor")
    record(folder, AGGRESSOR, Quotas())
    return folder / "0"


def policy(folder: Path, text: str) -> Policy:
    file = folder / "policy.toml"
    file.write_text(text)
    return read_policy(file)


def test_the_aggressor_was_held_and_the_modest_one_was_not(aggressor: Path) -> None:
    """The recording that the other tests go by would be of nothing."""
    played = play(aggressor, None)

    assert 1.0 < played.recorded.clients["client-0"]
    assert "client-1" not in played.recorded.clients
    assert 3.0 < played.recorded.level_peak <= 10.0


def test_the_estimate_of_the_policy_in_force_is_near_what_happened(aggressor: Path) -> None:
    """Nobody could trust what the same model says of another policy."""
    played = play(aggressor, None, check=True)

    assert played.estimate is not None
    assert played.recorded.throttled() == pytest.approx(played.estimate.throttled(), rel=0.1)
    assert played.recorded.level_peak == pytest.approx(played.estimate.level_peak, abs=0.5)
    assert played.recorded.accepted == played.estimate.accepted


def test_a_policy_that_says_what_was_in_force_is_no_estimate(aggressor: Path, tmp_path: Path) -> None:
    """What is known would be passed off as guessed."""
    same = policy(tmp_path, f"[overload]\ncap = {TIGHT.cap}\n")

    played = play(aggressor, same)

    assert played.same
    assert played.estimate is None


def test_a_generous_policy_holds_nobody_and_a_strict_one_for_longer(aggressor: Path, tmp_path: Path) -> None:
    """To try a policy would say nothing about it."""
    generous = play(aggressor, policy(tmp_path, f"[overload]\nrefill = {[1_000_000] * 11}\ncap = 1000000\n"))
    strict = play(aggressor, policy(tmp_path, "[overload]\nrefill = [200, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1]\n"))

    assert generous.estimate is not None and strict.estimate is not None
    assert 0.0 == generous.estimate.throttled()
    assert generous.recorded.longest_wait_s < strict.estimate.longest_wait_s


def test_without_protection_nobody_is_held(aggressor: Path, tmp_path: Path) -> None:
    """Nobody could find out what protection has been good for."""
    played = play(aggressor, policy(tmp_path, "[overload]\nenabled = false\n"))

    assert played.estimate is not None
    assert 0.0 == played.estimate.held_s.get("credits", 0.0)
    assert played.estimate.accepted == played.estimate.publishes
    assert played.estimate.level_peak >= played.recorded.level_peak


def test_dearer_publishes_use_up_credits_sooner(aggressor: Path, tmp_path: Path) -> None:
    """Prices could be changed in a policy, and nothing would come of it."""
    dear = play(aggressor, policy(tmp_path, "[overload.cost]\npublish = 100\n"))

    assert dear.estimate is not None
    assert dear.recorded.throttled() < dear.estimate.throttled()


def test_only_what_is_after_the_time_counts(aggressor: Path) -> None:
    """The last hour would be mixed with the day before."""
    played = play(aggressor, None)
    whole, began = played.recorded, played.about.wall

    half = play(aggressor, None, since=began + whole.seconds / 2).recorded
    none = play(aggressor, None, since=began + whole.seconds + 1).recorded

    assert half.seconds == pytest.approx(whole.seconds / 2)
    assert 0 < half.publishes < whole.publishes
    assert 0.0 < half.throttled() < whole.throttled()
    assert Outcome() == none


def test_outcomes_add_up_whatever_they_went_through(aggressor: Path) -> None:
    """Two workers would count as one, or Spark would bring back something else than was counted."""
    one = play(aggressor, None).recorded
    two = unpacked(one.packed())
    assert one == two

    two.add(one)

    assert (2 * one.publishes, 2 * one.seconds, one.level_peak) == (two.publishes, two.seconds, two.level_peak)
    assert 2 * one.clients["client-0"] == two.clients["client-0"]
    assert one.wait_of(0.99) == two.wait_of(0.99)
    assert 0.0 == one.wait_of(0.01) < one.wait_of(0.99) <= one.longest_wait_s


def test_an_estimate_that_rests_on_recorded_signals_is_called_weak(tmp_path: Path) -> None:
    """An operator would trust that a policy changes nothing where the trace cannot tell."""
    load = [("inject", 0, "outbound", 2.0, 3.0) if one[:3] == ("inject", 0, "lag") else one for one in AGGRESSOR]
    record(tmp_path, load, Quotas())
    by_outbound = play(tmp_path / "0", None, check=True)
    assert by_outbound.recorded.cause_s.keys() == {"outbound"}
    assert by_outbound.estimate is not None
    assert by_outbound.estimate.cause_s.keys() == {"outbound"}
    assert weak(by_outbound.recorded).startswith(
        "The estimate is weak: for 100% of the time above level 0 the cause was outbound."
    )


def test_an_estimate_of_lag_is_not_called_weak(aggressor: Path) -> None:
    """A warning that always comes is not read."""
    assert play(aggressor, None).recorded.cause_s.keys() == {"lag"}
    assert "" == weak(play(aggressor, None).recorded)


def test_processes_find_what_one_finds(aggressor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found would depend on the number of cores, or parts of it would be lost on the way."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    files = [aggressor, aggressor.with_name("1"), tmp_path / "away"]
    policies = [policy(tmp_path, "[overload]\nenabled = false\n")]

    assert backtest(files, policies, 0.0, run_locally) == backtest(files, policies, 0.0, in_processes)


def test_all_traces_are_tried_under_all_policies(aggressor: Path, tmp_path: Path) -> None:
    """A policy would be compared with other traces than what is recorded, or with another policy's name on it."""
    none = policy(tmp_path, "[overload]\nenabled = false\n")
    same = policy(tmp_path, f"[overload]\nwait = {TIGHT.wait}\n")

    found = backtest([aggressor, aggressor.with_name("1"), tmp_path / "away"], [none, same], 0.0, run_locally)

    assert [("weir", 0), ("weir", 1)] == [(one["node"], one["worker"]) for one in found.traces]
    assert [True, False] == [one.estimate for one in found.policies]
    assert found.recorded == found.policies[1].outcome
    assert found.recorded.publishes == found.policies[0].outcome.publishes
    assert [f"Cannot read the trace {tmp_path / 'away'}: No such file or directory."] == found.problems


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[overload]\nrefil = 3\n", "did you mean overload.refill?"),
        ("[overload]\nwait = -1\n", "overload.wait = -1 in .*line 2 is not valid: it must be a duration"),
        ("[overload]\ncap = 10\n", r"overload.cap_least is not valid in the policy policy: it must be at most"),
        ("[limits]\nqos = 1\n", "There is no policy in .*: it needs a table"),
        ("overload", "is not TOML"),
    ],
)
def test_a_mistake_in_a_policy_is_one_sentence(aggressor: Path, tmp_path: Path, text: str, sentence: str) -> None:
    """A typing error would be tried in silence, or end in a traceback."""
    with pytest.raises(ConfigError, match=sentence):
        play(aggressor, policy(tmp_path, text))


def test_what_is_no_part_of_a_policy_is_said(tmp_path: Path) -> None:
    """Somebody would believe that it had been tried."""
    found = policy(tmp_path, "[overload]\nconnect_burst = 3\ncap = 5000\n[limits]\nqos = 1\n")

    assert {"overload.cap": 5000} == found.settings
    assert 2 == len(found.notes)
    assert "overload.connect_burst" in found.notes[0]
    assert "[limits]" in found.notes[1]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            msgpack.packb([0, 1, [0.0, 0.0, 0.0], {}]),
            "has trace version 1, but this Weir plays versions 2 to 4: record",
        ),
        (msgpack.packb([0, 2, [0.0, 0.0, 0.0], {}]), "does not name the worker"),
        (b"nonsense", "is not a trace"),
        (b"\xc1", "is not a trace"),
        (b"", "is not a trace"),
    ],
)
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, data: bytes, sentence: str) -> None:
    """A file given by mistake would end in a traceback."""
    file = tmp_path / "file"
    file.write_bytes(data)

    with pytest.raises(BadTrace, match=sentence):
        play(file, None)


def test_a_trace_that_is_damaged_in_the_middle_says_where(aggressor: Path, tmp_path: Path) -> None:
    """What is left of it would be taken for all of it."""
    file = tmp_path / "file"
    file.write_bytes(aggressor.read_bytes() + msgpack.packb([6, 99, 1, 1, 0.1]))

    with pytest.raises(BadTrace, match=r"is damaged at its record [0-9]+: IndexError"):
        play(file, None)


def test_a_trace_that_is_still_written_is_played_up_to_its_end(aggressor: Path, tmp_path: Path) -> None:
    """Nobody could look at a node that runs."""
    file = tmp_path / "file"
    file.write_bytes(aggressor.read_bytes()[:-3])

    assert play(file, None).recorded.publishes > 0
