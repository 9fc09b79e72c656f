# What commands share: options, loading the configuration, and exit codes.
#
# Exit codes of all commands: 0 success; 1 the node is not running, or there is no such client; 2 the request cannot be
# carried out and nothing was changed; 3 the node stopped because its workers crash again and again; 4 no broker there,
# or it refused the connection; 5 the connection was lost; 130 Ctrl-C.
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
        help="Configuration file (TOML). Default: /etc/weir/weir.toml if it exists.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting, such as limits.packet_bytes=2MiB. Repeatable."),
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NODE", help="Name of the node, if this machine has several.")
]
Folder = Annotated[
    str | None,
    typer.Option("--folder", metavar="FOLDER", help="Folder of the node, if it is not in the default place."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load_settings(file: Path | None, assignments: list[str] | None, options: Sequence["Given"] = ()) -> "Loaded":
    """The effective configuration. A mistake in it ends the command."""
    from broker.config.schema import ConfigError
    from broker.config.sources import from_assignments, load

    try:
        return load(file, options=[*from_assignments(assignments or []), *options])
    except ConfigError as error:
        refuse(str(error))


def refuse(sentence: str, code: int = MISUSE) -> Never:
    typer.echo(f"weir: {sentence}", err=True)
    raise typer.Exit(code)
