# `weir start`: in the foreground, or detached.
#
# To detach, the command starts itself again in a process session of its own, with a pipe on which the node reports that
# it serves, or why it does not. So `weir start --detach` fails like `weir start`, with the same message and exit code.
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final, Never

import typer

from broker.config.schema import Config
from cli.hidden_arguments import without_secrets
from cli.options import GAVE_UP, refuse
from supervisor.folder import NodeFolder
from supervisor.process import interpreter_flags
from supervisor.start import GaveUp, StartError, run

LONGEST: Final = 64 * 1024  # bytes


def start_here(config: Config, tell: int | None, reread: Callable[[], Config]) -> Never:
    """Run the node until it is stopped. *tell*: for a detached node, the descriptor on which it reports its start.

    *reread*: the configuration at a reload. ConfigError.
    """
    try:
        code = run(config, tell is not None, lambda: _report(tell, {"pid": os.getpid()}), reread)
    except StartError as error:
        _report(tell, {"error": str(error)})
        refuse(str(error))
    except GaveUp as error:
        refuse(str(error), GAVE_UP)
    raise typer.Exit(code)


def start_detached(config: Config) -> Never:
    """Start the node as a process of its own, with the arguments of this command, and return when it serves."""
    ours, theirs = os.pipe()
    arguments, hidden = without_secrets([one for one in sys.argv[1:] if one != "--detach"])
    command = [sys.executable, *interpreter_flags(), "-m", "cli", *arguments, "--tell", str(theirs)]
    process = subprocess.Popen(
        command,
        env={**os.environ, **hidden},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[theirs],
        start_new_session=True,
    )
    os.close(theirs)
    with open(ours, "rb") as pipe:
        line = pipe.read(LONGEST)
    folder = NodeFolder(config.node.name, config.node.folder)
    if not line:
        code = process.wait()
        refuse(f"The node {folder.name} exited with code {code} while it started. Look into {folder.log}.")
    report = json.loads(line)
    if "error" in report:
        refuse(report["error"])
    typer.echo(f"The node {folder.name} serves (process {report['pid']}). Its log is {folder.log}.")
    raise typer.Exit


def _report(tell: int | None, facts: dict[str, object]) -> None:
    if tell is not None:
        os.write(tell, json.dumps(facts).encode())
        os.close(tell)
