# `weir simulate` on what a worker in this process recorded.
import json
import re
from pathlib import Path

import pytest

from broker.config.schema import Quotas
from tests.backtest.test_backtest import AGGRESSOR, record
from tests.cli.running import weir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's, with the traces of two workers and two policies in it."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "node").write_text("there\n")
    (folder / "trace").mkdir()
    record(folder / "trace", AGGRESSOR, Quotas())
    for number in ("0", "1"):
        (folder / "trace" / number).rename(folder / "trace" / f"worker-{number}.trace")
    (folder / "off.toml").write_text("[overload]\nenabled = false\n")
    (folder / "same.toml").write_text("[overload]\nwait = 1\n")
    return folder


def test_it_is_said_what_policies_would_have_changed(folder: Path) -> None:
    """An operator would get figures, and not know what they mean or that they are guessed."""
    policies = ["--policy", str(folder / "off.toml"), "--policy", str(folder / "same.toml")]
    shown = weir("simulate", *policies, "--folder", str(folder), "--local", COLUMNS="100")

    assert (0, "") == (shown.returncode, shown.stderr)
    text = " ".join(shown.stdout.split())
    for words in (
        "2 traces,",
        "all repeated exactly",
        "off (estimate) same (in force)",
        "client-0",
        "Under off (an estimate), no client would have been throttled",
        "same is the recorded policy, so its outcome is the recorded one: 1 client was throttled for",
        "Accuracy: for the recorded policy",
    ):
        assert words in text
    assert max(map(len, shown.stdout.splitlines())) <= 100


def test_the_table_has_the_levels_of_the_sentences(folder: Path) -> None:
    """The highest level was 0.3 in the table, and the level peaked at 1 below it."""
    told = weir("simulate", "--policy", str(folder / "off.toml"), "--folder", str(folder), "--local", COLUMNS="400")

    (row,) = re.findall(r"highest level\s+(\S+)\s+(\S+)", told.stdout)
    assert [row[0]] == re.findall(r"the level peaked at (\w+)", told.stdout)
    assert [row[1]] == re.findall(r"the level would have peaked at (\w+)", told.stdout)


def test_it_needs_no_spark_on_one_machine(folder: Path) -> None:
    """Spark took longer to start than the traces to play, and needed Java."""
    shown = weir("simulate", "--policy", str(folder / "off.toml"), "--folder", str(folder), JAVA_HOME="/nowhere")

    assert (0, "") == (shown.returncode, shown.stderr)
    assert "2 traces," in shown.stdout
    refused = weir(
        *("simulate", "--policy", str(folder / "off.toml"), "--folder", str(folder), "--master", "local"),
        JAVA_HOME="/nowhere",
    )
    assert (2, 1) == (refused.returncode, len(refused.stderr.splitlines()))
    assert "JAVA_HOME (/nowhere) has no java" in refused.stderr


def test_programs_get_all_of_it_from_one_trace(folder: Path) -> None:
    """A program would have to read a table for people."""
    trace = folder / "trace" / "worker-0.trace"
    shown = weir("simulate", "--policy", str(folder / "off.toml"), "--trace", str(trace), "--json")

    told = json.loads(shown.stdout)
    assert "" == shown.stderr
    assert [str(trace)] == [one["file"] for one in told["traces"]]
    assert [("off", True, {"overload.enabled": False})] == [
        (one["name"], one["estimate"], one["settings"]) for one in told["policies"]
    ]
    assert "client-0" == told["recorded"]["outcome"]["clients"][0]["client"]
    assert told["recorded"]["outcome"]["publishes"] == told["policies"][0]["outcome"]["publishes"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--since", "soon"], 2, "--since soon is not valid: it must be a duration such as"),
        (["--policy", "away.toml"], 2, "Cannot read the configuration file away.toml"),
        (["--trace", "away"], 2, "Cannot read the trace away: No such file or directory."),
        (["--folder", "/nowhere"], 1, "has no traces in /nowhere/trace: `weir start --set overload.trace="),
    ],
)
def test_what_cannot_be_is_one_sentence(folder: Path, arguments: list[str], code: int, sentence: str) -> None:
    """A mistake would end in a traceback."""
    refused = weir("simulate", "--policy", str(folder / "off.toml"), "--local", *arguments)

    assert code == refused.returncode
    assert sentence in refused.stderr
    assert 1 == len(refused.stderr.splitlines())
