# What commands have in common: options, the configuration they lead to, and how a command refuses.
#
# Exit codes are the same everywhere: 0 done; 1 it is not so, as that node does not run or has no such client; 2 what
# was asked for cannot be done, and nothing was changed; 3 the node gave up, as its workers do not stay alive; 4 no
# broker is there, or it refused; 5 it went away meanwhile; 130 Ctrl-C.
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Never

import typer

if TYPE_CHECKING:
    from broker.config.sources import Given, Loaded

NOT_SO: Final = 1
MISUSE: Final = 2
GAVE_UP: Final = 3
UNREACHABLE: Final = 4
GONE: Final = 5
INTERRUPTED: Final = 130

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Settings in TOML. Without it, /etc/weir/weir.toml is read if it is there.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="One setting, such as limits.packet_bytes=2MiB. Repeatable."),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NODE", help="Which node, if there are several here.")]
Folder = Annotated[
    str | None, typer.Option("--folder", metavar="FOLDER", help="The node's folder, if it is not the usual one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def load_settings(file: Path | None, assignments: list[str] | None, options: Sequence["Given"] = ()) -> "Loaded":
    """The configuration in force; a mistake in it ends the command."""
    from broker.config.schema import ConfigError
    from broker.config.sources import from_assignments, load

    try:
        return load(file, options=[*from_assignments(assignments or []), *options])
    except ConfigError as error:
        refuse(str(error))


def refuse(sentence: str, code: int = MISUSE) -> Never:
    typer.echo(f"weir: {sentence}", err=True)
    raise typer.Exit(code)
