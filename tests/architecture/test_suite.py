# The suite's own promises: a run tests the form that it says, and where nothing may be skipped, nothing is.
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.version import form
from tests.conftest import ROOT


def run_pytest(folder: Path, source: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run *source* as a test file of its own, under our conftest."""
    file = folder / "test_inner.py"
    file.write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(file)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **environ}, check=False
    )


SKIPS = """
import pytest

def test_while_it_runs():
    pytest.skip("no mosquitto")

@pytest.mark.skip
def test_by_a_mark():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "strict", "lenient"),
    [
        (SKIPS, "1 failed, 1 error", "2 skipped"),
        ("import pytest\npytest.importorskip('no_such_package')", "1 error", "1 skipped"),
    ],
)
def test_a_skip_is_a_failure_where_nothing_may_be_skipped(
    tmp_path: Path, source: str, strict: str, lenient: str
) -> None:
    """A missing tool would quietly take its tests with it, and the run be green."""
    assert strict in run_pytest(tmp_path, source, WEIR_NO_SKIP="1").stdout
    assert lenient in run_pytest(tmp_path, source, WEIR_NO_SKIP="0").stdout


@pytest.mark.slow
def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    """xfail would be unusable in continuous integration."""
    source = "import pytest\n@pytest.mark.xfail\ndef test_it(): assert False"

    assert "1 xfailed" in run_pytest(tmp_path, source, WEIR_NO_SKIP="1").stdout


@pytest.mark.slow
def test_a_run_of_the_wrong_form_does_not_begin(tmp_path: Path) -> None:
    """A run that claims to test the compiled modules would test the sources."""
    other = "interpreted" if form() == "compiled" else "compiled"

    done = run_pytest(tmp_path, "def test_it(): pass", WEIR_FORM=other)

    assert 4 == done.returncode
    assert f"WEIR_FORM={other}, but the broker in" in done.stderr


@pytest.mark.slow
def test_a_run_of_the_wrong_place_does_not_begin(tmp_path: Path) -> None:
    """A run that claims to test the installed copy would test the sources, and the other way round."""
    installed = os.environ.get("WEIR_INSTALLED") == "1"

    done = run_pytest(tmp_path, "def test_it(): pass", WEIR_FORM=form(), WEIR_INSTALLED="0" if installed else "1")

    assert 4 == done.returncode
    assert "The broker of the other place was imported" in done.stderr


def test_no_compiled_file_is_beside_a_source() -> None:
    """A compiled file would hide the source that is being edited."""
    assert [] == [path for folder in ("broker", "cli", "supervisor") for path in (ROOT / folder).rglob("*.so")]
