# The files of deploy/ for containers, as tests read them: commands are parsed as `weir` would, without executing them.
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from broker.config.schema import Config
from broker.config.sources import load
from cli.main import app
from tests.conftest import ROOT

DEPLOY: Final = ROOT / "deploy"
COMPOSE: Final = DEPLOY / "compose" / "compose.yaml"
KUBERNETES: Final = DEPLOY / "kubernetes"
DOCKERFILE: Final = DEPLOY / "Dockerfile"
USER: Final = 10001  # that the images run as
SHELL_COMMAND: Final = re.compile(r"\bexec weir ([^;]+)")


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    yaml = pytest.importorskip("yaml")
    return [*yaml.safe_load_all(path.read_text())]


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """The parameters of the command `weir ARGUMENTS`. KeyError: there is no such command; click.UsageError."""
    command: Any = typer.main.get_command(app)
    rest = [*arguments]
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return dict(command.make_context(command.name, rest).params)


def of_shell(script: str) -> list[str]:
    """The arguments of the command of weir that *script* ends with."""
    (found,) = SHELL_COMMAND.findall(script)
    return shlex.split(found)


def settings(path: Path, environment: Mapping[str, str]) -> Config:
    """The configuration of a node with the file *path* in this environment. ConfigError."""
    return load(path, environment).config


def listening(config: Config) -> dict[str, int]:
    """The ports of the listeners that are enabled and that other containers reach, by their names."""
    found = {name: getattr(config.listeners, name) for name in ("tcp", "tls", "ws", "wss")} | {"admin": config.admin}
    return {name: one.port for name, one in found.items() if one.enabled and "0.0.0.0" in one.host}
