# Runs the phases, tries each failed test a second time by itself, and lists at the end which tests were flaky.
#
# A test that fails and then passes does not fail the run: beside others it may have waited for the processor. It is
# listed all the same, with its file and both outcomes, because such a test is a bug in itself or in Weir.
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.tools.suite.phases import COVERED, LEAST_COVERAGE, Phase

ROOT: Final = Path(__file__).resolve().parents[3]
CACHE: Final = ROOT / ".venv" / "tried"  # pytest lists there the tests that failed
TESTS_FAILED: Final = 1  # an exit code of pytest: all others say that pytest itself could not go on
INSTALL: Final = [sys.executable, "deploy/install.py"]


@dataclass
class Done:
    """The outcome of one phase."""

    phase: Phase
    code: int = 0
    seconds: float = 0.0
    flaky: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def environment(phase: Phase) -> dict[str, str]:
    """tests/conftest.py refuses to run when it imports another form of the broker than WEIR_FORM names."""
    variables = {**os.environ, "WEIR_SYSTEM_WORKERS": str(phase.workers), "WEIR_SYSTEM_NODES": str(phase.nodes)}
    variables.pop("WEIR_INSTALLED", None)
    if not phase.compiled:
        return {**variables, "PYTHONPATH": str(ROOT), "WEIR_FORM": "interpreted"}
    # The tests are importable here and the sources are not; PYTHONSAFEPATH keeps the current folder out, too.
    variables |= {"PYTHONPATH": str(ROOT / ".venv" / "only"), "PYTHONSAFEPATH": "1", "WEIR_INSTALLED": "1"}
    question = [sys.executable, "-c", "from broker.version import form; print(form())"]
    variables["WEIR_FORM"] = subprocess.run(
        question, env=variables, check=True, capture_output=True, text=True
    ).stdout.strip()  # "interpreted" on a machine without a C compiler
    return variables


def last_failed(cache: Path) -> list[str]:
    listed = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(listed.read_text())) if listed.exists() else []


def pytest(phase: Phase, variables: Mapping[str, str], *options: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", *options, *phase.arguments()]
    return subprocess.run(command, env=variables, cwd=ROOT).returncode


def run(phase: Phase, cache: Path = CACHE) -> Done:
    """Run the tests of *phase*, several at a time, and then those that failed, one at a time."""
    print(f"== {phase.name} ==", flush=True)
    begin = time.monotonic()
    variables = environment(phase)
    place = ["-o", f"cache_dir={cache}"]
    options = [
        *place,
        "--cache-clear",
        "-n",
        str(phase.parallel),
        "--dist",
        "worksteal",
        "--durations=10",
        "--durations-min=5",
    ]
    if phase.coverage:
        options += [*(f"--cov=broker.{package}" for package in COVERED), "--cov-branch", "--cov-report="]
    done = Done(phase, pytest(phase, variables, *options))
    if done.code == TESTS_FAILED and (failed := last_failed(cache)):
        print("== what failed, once more by itself ==", flush=True)
        alone = [*place, "--no-cov", "-W", "ignore::pytest_cov.CovDisabledWarning"]
        done.code = pytest(phase, variables, *alone, "--last-failed", "--last-failed-no-failures", "none")
        done.failed = last_failed(cache)
        done.flaky = sorted(set(failed) - set(done.failed))
    if phase.coverage and done.code == 0:
        print(f"Coverage of {', '.join(COVERED)}: at least {LEAST_COVERAGE} %", flush=True)
        report = [sys.executable, "-m", "coverage", "report", "--skip-covered", f"--fail-under={LEAST_COVERAGE}"]
        done.code = subprocess.run(report, env=variables, cwd=ROOT).returncode
    done.seconds = time.monotonic() - begin
    return done


def install() -> None:
    """Have the compiled copy installed; a build that runs in the background is waited for."""
    if code := subprocess.run(INSTALL, cwd=ROOT).returncode:
        sys.exit(code)
    only = ROOT / ".venv" / "only"
    only.mkdir(exist_ok=True)
    if not (only / "tests").exists():
        (only / "tests").symlink_to(Path("../../tests"))


def run_all(phases: Sequence[Phase]) -> list[Done]:
    """Run *phases* until one fails. The copy is compiled beside the tests of the sources, which need no copy."""
    outcomes: list[Done] = []
    builder = subprocess.Popen(
        [*INSTALL, "--only-build"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,  # install() builds once more if this fails, and shows why
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for phase in phases:
            if phase.compiled:
                builder.wait()
                install()
            outcomes.append(run(phase))
            if outcomes[-1].code:
                break
    finally:
        if builder.poll() is None:
            os.killpg(builder.pid, signal.SIGTERM)
        builder.wait()
    return outcomes


def summary(outcomes: Sequence[Done]) -> str:
    """The seconds of each phase, and the tests that failed beside others and passed alone."""
    lines = ["== phases =="]
    lines += [f"{one.seconds:6.0f} s  {'FAILED' if one.code else 'passed'}  {one.phase.name}" for one in outcomes]
    flaky = [f"{test}: failed beside others, passed alone ({one.phase.name})" for one in outcomes for test in one.flaky]
    failed = [
        f"{test}: failed beside others, failed alone ({one.phase.name})" for one in outcomes for test in one.failed
    ]
    if failed:
        lines += ["== failed ==", *failed]
    return "\n".join([*lines, "== flaky ==", *(flaky or ["none: no test needed a second try"])])
