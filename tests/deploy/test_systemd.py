# The unit for systemd: what it tells the node, and what it expects of it.
import configparser
import os
from pathlib import Path

import pytest

from broker.config.schema import Config
from cli.nodes import LATE
from cli.options import MISUSE
from supervisor.folder import base_folder
from tests.deploy.files import DEPLOY, options


class _Unit(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr  # names have capitals


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    unit = _Unit()
    unit.read(DEPLOY / "weir.service")
    return unit["Service"]


def test_it_starts_a_node_in_the_foreground(service: configparser.SectionProxy) -> None:
    """systemd would take a node that detaches for one that has ended, or start it with wrong settings again."""
    program, *arguments = service["ExecStart"].split()

    assert "/opt/weir/bin/weir" == program  # where README.md installs it
    assert "start" == arguments[0] and not options(arguments)["detach"]
    assert [str(MISUSE)] == service["RestartPreventExitStatus"].split()


def test_root_finds_its_folder(service: configparser.SectionProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """`weir status` would say that no node runs, or the node would find no folder that it may write to."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    of_root = base_folder()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    name, _, value = service["Environment"].partition("=")
    monkeypatch.setenv(name, value)

    assert of_root == base_folder() == Path("/var/lib") / service["StateDirectory"]


def test_it_has_the_time_to_stop(service: configparser.SectionProxy) -> None:
    """Workers would be killed while their clients leave."""
    assert "mixed" == service["KillMode"]
    assert Config().drain.timeout + LATE <= float(service["TimeoutStopSec"])
