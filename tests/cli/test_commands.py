import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from broker.config.sources import KINDS
from broker.version import VERSION, form
from cli.main import app
from tests.cli.running import weir


def test_version_says_which_weir_and_which_form() -> None:
    """A bug report would not say whether the compiled modules were at work."""
    done = weir("--version")

    assert f"weir {VERSION} ({form()}, Python {platform.python_version()})\n" == done.stdout
    assert form() in ("compiled", "interpreted")
    assert 0 == done.returncode


def test_version_needs_neither_trio_nor_structlog() -> None:
    """`weir --version` and `weir --help` would take as long as a start."""
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom cli.main import app\n"
        "CliRunner().invoke(app, ['--version'])\n"
        "print('broker.version' in sys.modules, {'trio', 'structlog', 'broker.worker'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert "True set()\n" == done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["start", "passwd", "config", "--version", "pub", "sub", "bench"]),
        (["bench", "--help"], ["HOST", "--pattern", "--rate", "--window", "--processes", "--json", "fan-out"]),
        (["pub", "--help"], ["TOPIC", "MESSAGE", "--file", "--retain", "--qos", "-h", "-p", "--cafile"]),
        (["sub", "--help"], ["FILTER", "--count", "--json", "--verbose", "-v"]),
        (["start", "--help"], ["--config", "--host", "--port", "--set", "SIGTERM"]),
        (["config", "--help"], ["check", "show"]),
        (["limit", "--help"], ["set", "list", "drop"]),
        (["limit", "set", "--help"], ["CLIENT", "--rate", "--no-protection", "--ttl", "--reason", "quotas.session"]),
        (["passwd", "--help"], ["FILE", "USER", "--create", "--delete", "--iterations", "weir reload"]),
    ],
)
def test_help_names_what_there_is(arguments: list[str], words: list[str]) -> None:
    """A command or option would be known only to those who read the source."""
    done = weir(*arguments)

    assert 0 == done.returncode
    assert [] == [word for word in words if word not in done.stdout]


def test_help_lists_start_first_and_breaks_lines_at_the_width_of_the_terminal() -> None:
    """A newcomer would look for the first command among thirty, and read paragraphs with half lines."""
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]

    assert "start" == next(iter(commands))
    assert [] == [text for command in commands.values() for text in _paragraphs(command) if "\n" in text]


def _paragraphs(command: Any) -> Iterator[str]:
    yield from (command.help or "").split("\n\n")
    for each in getattr(command, "commands", {}).values():
        yield from _paragraphs(each)


def test_config_check_accepts_what_a_broker_would_start_with(tmp_path: Path) -> None:
    """A deployment could not try its file before a restart."""
    file = tmp_path / "weir.toml"
    file.write_text("[log]\nlevel = 'debug'\n")

    done = weir("config", "check", "--config", str(file), "--set", "limits.qos=1")

    assert (0, "The configuration is valid.\n", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("command", [["start"], ["config", "check"]])
@pytest.mark.parametrize(("setting", "what"), [("password_file", "password"), ("acl_file", "ACL")])
def test_a_bad_line_of_an_access_file_is_one_sentence_and_exit_code_2(
    tmp_path: Path, command: list[str], setting: str, what: str
) -> None:
    """A broker would start that lets nobody in, or `weir config check` find fine what no broker starts with."""
    file = tmp_path / "file"
    missing = weir(*command, "--set", f"access.{setting}={file}")
    file.write_text("# nothing\nwhatever: it is\n")
    bad = weir(*command, "--set", f"access.{setting}={file}")

    assert f"weir: Cannot read the {what} file {file}: No such file or directory.\n" == missing.stderr
    assert bad.stderr.startswith(f"weir: The {what} file {file}, line 2: ")
    assert [(2, "", 1)] * 2 == [(one.returncode, one.stdout, len(one.stderr.splitlines())) for one in (missing, bad)]


@pytest.mark.parametrize("command", [["start"], ["config", "check"]])
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["listeners.tls.enabled=true", "tls.certificate=/no/such", "tls.key=/no/such"], "/no/such"),
        (["redis.url=http://elsewhere"], "redis+sentinel://[USER:PASSWORD@]HOST"),
    ],
)
def test_what_no_node_starts_with_is_found_before_it_is_tried(
    tmp_path: Path, command: list[str], settings: list[str], named: str
) -> None:
    """`weir config check` would find fine what `weir start` refuses."""
    options = [word for setting in (f"node.folder={tmp_path / 'node'}", *settings) for word in ("--set", setting)]
    done = weir(*command, *options)

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert named in done.stderr


@pytest.mark.parametrize("command", [["start"], ["config", "check"], ["config", "show"]])
def test_bad_configuration_is_one_sentence_and_exit_code_2(command: list[str]) -> None:
    """A mistake in the configuration would end in a traceback, or start something."""
    done = weir(*command, "--set", "limits.qos=3")

    sentence = "weir: limits.qos = '3' in --set is not valid: it must be a whole number from 0 to 2.\n"
    assert (2, "", sentence) == (done.returncode, done.stdout, done.stderr)


def test_a_bad_port_option_is_refused_by_the_name_it_was_given_with() -> None:
    """The user wrote --port and would be told of a setting that they never heard of."""
    done = weir("start", "--port", "65536")

    expected = "weir: listeners.tcp.port = 65536 in --port is not valid: it must be a whole number from 0 to 65535.\n"
    assert (2, expected) == (done.returncode, done.stderr)


def test_config_show_prints_every_setting_and_where_it_comes_from() -> None:
    """Nobody could tell which of four sources is in force."""
    done = weir("config", "show", "--set", "limits.qos=1", WEIR_LOG__LEVEL="debug")

    lines = done.stdout.splitlines()
    assert list(KINDS) == [line.partition(" = ")[0] for line in lines]
    told = {line.partition(" = ")[0]: line.partition(" = ")[2].split() for line in lines}
    assert ["1", "#", "--set"] == told["limits.qos"]
    assert ['"debug"', "#", "the", "environment", "(WEIR_LOG__LEVEL)"] == told["log.level"]
    assert ['"1MiB"', "#", "default"] == told["limits.packet_bytes"]


def test_config_show_prints_json_for_programs() -> None:
    """A program would have to parse the table for people."""
    done = weir("config", "show", "--json", "--set", "drain.timeout=500ms")

    told = json.loads(done.stdout)
    assert list(KINDS) == list(told)
    assert {"value": 0.5, "source": "--set"} == told["drain.timeout"]
    assert ["127.0.0.1", "::1"] == told["listeners.tcp.host"]["value"]
