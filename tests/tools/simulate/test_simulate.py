# Some hundred histories of durable sessions; `make simulate` runs as many as are wanted.
import pytest

from broker.protocol.pending_wills import PendingWills
from tests.store.durable.model import ModelRedis, Reply
from tests.tools.faults.durable.checker import LOST, REORDERED, SESSION_PRESENT, WILL_DOUBLED
from tests.tools.simulate.history import WEIGHTS, history_of, run, shortened
from tests.tools.simulate.link import Link
from tests.tools.simulate.worker import SimWorker
from tests.tools.simulate.world import STEPS

HISTORIES = 300

pytestmark = pytest.mark.interpreted  # it extends CompletionListener


@pytest.mark.parametrize("part", range(2))
def test_nothing_acknowledged_is_lost_whatever_ends(part: int) -> None:
    """A message would be lost, doubled or overtaken, or something would stay in Redis for ever."""
    for seed in range(part * HISTORIES // 2, (part + 1) * HISTORIES // 2):
        found = [str(violation) for violation in run(history_of(seed))]
        assert [] == found, f"python -m tests.tools.simulate --show --seed {seed}"


def test_a_history_follows_from_its_seed() -> None:
    """A history that fails could not be repeated."""
    told: list[list[str]] = [[], []]
    for each in told:
        run(history_of(7), each.append)

    assert told[0] == told[1]
    assert len(told[0]) > 20


def test_a_worker_that_answers_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation would not see that an acknowledged message is lost; or would not say which steps lose it."""
    answer = SimWorker._answer

    def at_once(worker: SimWorker, link: Link, completion: object, packet: bytes) -> None:
        answer(worker, link, None, packet)

    monkeypatch.setattr(SimWorker, "_answer", at_once)
    seed = next(seed for seed in range(1000) if any(each.kind == LOST for each in run(history_of(seed))[:1]))
    shorter = shortened(history_of(seed))

    assert [LOST] == [each.kind for each in run(shorter)[:1]]
    assert len(shorter.steps) < len(history_of(seed).steps)


def test_publishes_that_are_overtaken_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation would excuse what comes late after a session was taken from a worker that stood still."""
    monkeypatch.setattr(SimWorker, "let_go_of", lambda worker, former: None)

    assert any(each.kind == REORDERED for seed in range(2700, 2720) for each in run(history_of(seed)))


def test_a_session_that_is_given_to_a_dead_worker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation would excuse that nobody has it any more."""
    script = ModelRedis._script

    def never_refused(redis: ModelRedis, keys: list[bytes], words: list[bytes]) -> Reply:
        if words[0] == b"give":
            redis.ends.pop(keys[2], None)
        return script(redis, keys, words)

    monkeypatch.setattr(ModelRedis, "_script", never_refused)

    assert any(each.kind == SESSION_PRESENT for seed in range(450, 550) for each in run(history_of(seed)))


def test_a_will_that_comes_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation would not see that a will was sent before it was stored."""
    monkeypatch.setattr("broker.store.durable.parts.is_will", lambda message: False)

    assert any(each.kind == WILL_DOUBLED for seed in range(1000) for each in run(history_of(seed)))


def test_a_will_that_dies_with_its_worker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation would expect no will of a worker that has died while it was published."""
    monkeypatch.setattr(PendingWills, "adopt", lambda wills, adopted, now: adopted.record.end())

    assert any(each.kind == LOST for seed in range(1000) for each in run(history_of(seed)))


def test_each_step_has_a_weight() -> None:
    """A kind of fault would never happen."""
    assert set(STEPS) == set(WEIGHTS)
