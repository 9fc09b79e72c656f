# `weir start`: here, or as a process of its own that goes on when the command has returned.
#
# A detached node is the same command once more, in a session of its own, with a pipe on which it tells when it serves
# or why it does not: so `weir start --detach` fails as `weir start` does, with the same sentence and exit code.
import json
import os
import subprocess
import sys
from typing import Final, Never

import typer

from broker.config.schema import Config
from cli.options import GAVE_UP, refuse
from supervisor.folder import NodeFolder
from supervisor.start import GaveUp, StartError, run
from supervisor.workers import interpreter_flags

LONGEST: Final = 64 * 1024  # bytes


def start_here(config: Config, tell: int | None) -> Never:
    """Keep the node until it is stopped. *tell*: the descriptor to tell on; the node is detached."""
    try:
        code = run(config, tell is not None, lambda: _told(tell, {"pid": os.getpid()}))
    except StartError as error:
        _told(tell, {"error": str(error)})
        refuse(str(error))
    except GaveUp as error:
        refuse(str(error), GAVE_UP)
    raise typer.Exit(code)


def start_detached(config: Config) -> Never:
    """Start the node as this command was told to, and return when it serves."""
    ours, theirs = os.pipe()
    arguments = [one for one in sys.argv[1:] if one != "--detach"]
    command = [sys.executable, *interpreter_flags(), "-m", "cli", *arguments, "--tell", str(theirs)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[theirs],
        start_new_session=True,
    )
    os.close(theirs)
    with open(ours, "rb") as telling:
        line = telling.read(LONGEST)
    folder = NodeFolder(config.node.name, config.node.folder)
    if not line:
        code = process.wait()
        refuse(f"The node {folder.name} ended with {code} while it started; {folder.log} may say why.")
    told = json.loads(line)
    if "error" in told:
        refuse(told["error"])
    typer.echo(f"The node {folder.name} serves (process {told['pid']}); its log is {folder.log}.")
    raise typer.Exit


def _told(tell: int | None, facts: dict[str, object]) -> None:
    if tell is not None:
        os.write(tell, json.dumps(facts).encode())
        os.close(tell)
