# The command `weir`: reads options, composes, prints. It decides nothing about MQTT.
#
# What a command needs is imported inside it, so that `weir --version` and `weir --help` answer at once.
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Never

import typer

if TYPE_CHECKING:
    from broker.config_sources import Given, Loaded

TRANSPORTS: Final = ("tcp", "tls", "ws", "wss")
MISUSE: Final = 2  # exit code: what was asked for cannot be done; nothing was started

app = typer.Typer(
    name="weir",
    help="Weir, an MQTT broker that stays up under overload and can say why it slowed you down.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a plain traceback is what a bug report needs
)
config_app = typer.Typer(help="Look at the configuration without starting anything.", no_args_is_help=True)
app.add_typer(config_app, name="config")

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


def _print_version(wanted: bool) -> None:
    if wanted:
        from broker.version import banner

        typer.echo(banner())
        raise typer.Exit


@app.callback()
def weir(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Say which version this is, and whether compiled."
        ),
    ] = False,
) -> None:
    """Weir, an MQTT broker that stays up under overload and can say why it slowed you down."""


@app.command()
def start(
    config: ConfigFile = None,
    host: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Listen here instead of 127.0.0.1 and ::1. Repeatable.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Listen on this TCP port; 0 takes any free one.")
    ] = None,
    assignments: Assignments = None,
) -> None:
    """Start a broker in the foreground, until SIGTERM or Ctrl-C.

    Settings come from the file, then the environment (WEIR_LIMITS__PACKET_BYTES=2MiB), then these options;
    the later ones win. `weir config show` prints them all.
    """
    from broker.config_sources import Given

    options = []
    if host:
        options += [Given(f"listeners.{transport}.host", host, "--host") for transport in TRANSPORTS]
    if port is not None:
        options.append(Given("listeners.tcp.port", port, "--port"))
    loaded = _load(config, assignments, options)

    from broker.worker import StartError, run

    try:
        code = run(loaded.config)
    except StartError as error:
        _refuse(str(error))
    raise typer.Exit(code)


@app.command()
def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file, as access.password_file names it.")],
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose password to set.")],
    create: Annotated[bool, typer.Option("--create", help="Make FILE if it is not there; users in it stay.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Take USER out of FILE.")] = False,
    iterations: Annotated[
        int | None,
        typer.Option(min=1, max=10_000_000, metavar="N", help="What guessing costs, and each first log-in. [10000]"),
    ] = None,
) -> None:
    """Set a user's password. It is asked for twice, or read as one line if the input is no terminal.

    A broker that runs takes the change at SIGHUP.
    """
    from broker.access.passwords import ITERATIONS
    from cli.passwords import PasswordFileError, check_user, delete_user, read, set_password

    try:
        if delete:
            delete_user(file, user)
            typer.echo(f"User {user} is no longer in {file}.")
            return
        check_user(user)  # before anybody types a password in vain
        read(file, create)
        new = set_password(file, user, _ask_password(), iterations or ITERATIONS, create)
    except PasswordFileError as error:
        _refuse(str(error))
    typer.echo(f"User {user} was added to {file}." if new else f"The password of {user} in {file} is another now.")


def _ask_password() -> bytes:
    import sys

    if sys.stdin.isatty():
        typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        return typed.encode()
    return sys.stdin.buffer.readline().rstrip(b"\r\n")


@config_app.command()
def check(config: ConfigFile = None, assignments: Assignments = None) -> None:
    """Say whether a broker would start with these settings. Exit code 0 if so, else 2."""
    from broker.access_files import AccessFileError, AccessFiles

    loaded = _load(config, assignments)
    try:
        AccessFiles(loaded.config.access)
    except AccessFileError as error:
        _refuse(str(error))
    typer.echo("The configuration is fine.")


@config_app.command()
def show(
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Print every setting with its value in force and where it comes from."""
    settings = list(_load(config, assignments).describe())
    if as_json:
        import json

        rows = {one.key: {"value": one.value, "source": one.source} for one in settings}
        typer.echo(json.dumps(rows, indent=2))
        return
    width = max(len(f"{one.key} = {one.text}") for one in settings)
    for one in settings:
        typer.echo(f"{f'{one.key} = {one.text}':<{width}}  # {one.source}")


def _load(file: Path | None, assignments: list[str] | None, options: Sequence["Given"] = ()) -> "Loaded":
    """The configuration in force; a mistake in it ends the command."""
    from broker.config import ConfigError
    from broker.config_sources import from_assignments, load

    try:
        return load(file, options=[*from_assignments(assignments or []), *options])
    except ConfigError as error:
        _refuse(str(error))


def _refuse(sentence: str) -> Never:
    typer.echo(f"weir: {sentence}", err=True)
    raise typer.Exit(MISUSE)
