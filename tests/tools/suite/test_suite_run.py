# The runner of the suite, on a few tests of its own.
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.tools.suite.phases import CHANGE, NIGHT, Phase
from tests.tools.suite.run import Done, run, summary

TESTS = """
from pathlib import Path

import pytest

BEFORE = Path(__file__).with_name("before")


def test_that_passes() -> None:
    pass


def test_that_passes_the_second_time() -> None:
    seen = BEFORE.exists()
    BEFORE.touch()
    assert seen


@pytest.mark.parametrize("fails", [{fails}])
def test_that_may_fail(fails: bool) -> None:
    assert not fails
"""


def outcome(folder: Path, fails: bool) -> Done:
    (folder / "test_inner.py").write_text(TESTS.format(fails=fails))
    phase = Phase(name="inner", marks="not system", paths=[str(folder / "test_inner.py")], compiled=False, parallel=1)
    return run(phase, folder / "cache")


@pytest.mark.slow
@pytest.mark.nightly
def test_a_test_that_passes_by_itself_is_flaky_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that waited for the processor would refuse a change, or nobody would learn that it fails now and then."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)

    done = outcome(tmp_path, fails=False)

    assert 0 == done.code
    assert ["test_that_passes_the_second_time"] == [name.rpartition("::")[2] for name in done.flaky]
    assert [] == done.failed
    assert "::test_that_passes_the_second_time: failed beside others, passed alone (inner)" in summary([done])


@pytest.mark.slow
def test_a_test_that_fails_by_itself_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that breaks something would be accepted."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)

    done = outcome(tmp_path, fails=True)

    assert 1 == done.code
    assert ["test_that_may_fail[True]"] == [name.rpartition("::")[2] for name in done.failed]
    assert ["test_that_passes_the_second_time"] == [name.rpartition("::")[2] for name in done.flaky]


def test_a_run_without_a_second_try_says_so() -> None:
    """The absence of flaky tests would look like the absence of the list."""
    assert summary([Done(CHANGE[0])]).endswith("== flaky ==\nnone: no test needed a second try")


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("marks", [[], ["slow"], ["system"], ["slow", "system"], ["system", "any_workers"]])
def test_each_test_runs_before_a_change_is_accepted(marks: list[str], interpreted: bool) -> None:
    """A test would fail in the night, for as long as nobody looks."""
    if interpreted:
        marks = [*marks, "interpreted"]

    def has(name: str, /, **arguments: str | int | bool | None) -> bool:
        return name in marks

    phases = [phase for phase in CHANGE if not (interpreted and phase.compiled)]  # tests/conftest.py leaves it out

    assert any(Expression.compile(phase.marks).evaluate(has) for phase in phases)


def test_phases_have_names_of_their_own() -> None:
    """The report would not say which phase failed."""
    names = [phase.name for phase in (*CHANGE, *NIGHT)]

    assert len(set(names)) == len(names)
