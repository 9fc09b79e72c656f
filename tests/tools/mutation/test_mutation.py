# The tool itself, on a tiny package of its own.
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.conftest import ROOT
from tests.tools.mutation.score import interval, score_of

SOURCE = '''\
from typing import Final

LIMIT: Final = 10
_SQUARES: Final = [n * n for n in range(4)]


def fits(size: int) -> bool:
    """Whether *size* is allowed."""
    if size < 0:
        raise ValueError("less than nothing")
    return size <= LIMIT


def half(size: int) -> int:
    while size > LIMIT:
        size -= 1
    return size // 2


def square(n: int) -> int:
    return _SQUARES[n]


def unseen() -> int:
    return 1
'''

TESTS = """\
import pytest

from tiny.sizes import fits, half, square


def test_fits() -> None:
    assert fits(10)
    with pytest.raises(ValueError):
        fits(-1)


def test_half() -> None:
    assert 5 == half(13)


@pytest.mark.parametrize("n", [2, 3])
def test_square(n: int) -> None:
    assert n * n == square(n)
"""

SURVIVORS = """\
tiny/sizes.py:3
    - LIMIT: Final = 10
    + LIMIT: Final = 11
tiny/sizes.py:4
    - _SQUARES: Final = [n * n for n in range(4)]
    + _SQUARES: Final = [n * n for n in range(5)]
tiny/sizes.py:9
    - if size < 0:
    + if size <= 0:
tiny/sizes.py:9
    - if size < 0:
    + if size < 1:
tiny/sizes.py:25
    - return 1
    + return 2
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {"tiny/__init__.py": "", "tiny/sizes.py": SOURCE, "checks/test_sizes.py": TESTS}.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


def mutate(tree: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "tests.tools.mutation", "--package", "tiny", "--tests", "checks", *arguments]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tree}"}
    done = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, timeout=120)
    assert not done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.nightly
def test_what_no_test_notices_survives_and_nothing_else(tree: Path) -> None:
    """The score would flatter the suite or accuse it: in a function, in a table, at import, or in an endless loop."""
    said = mutate(tree)

    shown = "".join(f"{line}\n" for line in said.splitlines() if line.startswith(("tiny/sizes.py", "    - ", "    + ")))
    assert SURVIVORS == shown
    assert "tiny: 13 of 18 killed, 72.2 %" in said
    assert SOURCE == (tree / "tiny/sizes.py").read_text()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_suite_that_fails_unharmed_says_nothing(tree: Path) -> None:
    """Every mutant would count as killed by the test that fails anyway."""
    (tree / "checks/test_broken.py").write_text(
        "from tiny.sizes import fits\n\n\ndef test_it():\n    assert fits(11)\n"
    )

    said = mutate(tree)

    assert "Without any mutant these fail: checks/test_broken.py::test_it" in said
    assert "0 of 0 killed" in said


def test_a_sample_is_the_same_for_the_same_seed(tree: Path) -> None:
    """A survivor that was seen once could not be seen again."""
    shown = []
    for seed in (1, 1, 2):
        score = score_of(tree, "tiny")
        score.sample(0.5, Random(seed))
        shown.append([str(mutant) for mutant in score.mutants])

    assert shown[0] == shown[1] != shown[2]
    assert [9, 9, 9] == [len(set(one)) for one in shown]


def test_a_sample_says_how_sure_it_is() -> None:
    """A share of a few mutants would be read as that of all."""
    low, high = interval(90, 100)

    assert (0.826, 0.945) == (round(low, 3), round(high, 3))


@pytest.mark.slow
def test_it_collects_the_tests_of_this_repository() -> None:
    """An option of pytest that the tool and pyproject.toml disagree about would end it before the first mutant."""
    command = [sys.executable, "-m", "tests.tools.mutation", "--sample", "1"]
    command += ["--package", "broker/mqtt/topics.py", "--tests", "tests/mqtt/test_topics.py"]
    given = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "PYTHON"))}
    environ = {**given, "PYTHONPATH": str(ROOT)}  # it mutates the sources, whatever form is tested
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert " of 1 killed" in done.stdout
