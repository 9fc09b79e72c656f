# Commands that destroy something ask first.
import sys
from typing import Annotated

import typer

from cli.options import refuse

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, yes: bool) -> None:
    """Ask *question*, unless *yes*. Any answer but yes ends the command; so does input that is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        refuse("This command asks for confirmation and its input is not a terminal: confirm with --yes.")
    if not typer.confirm(question):
        refuse("Nothing was changed.")
