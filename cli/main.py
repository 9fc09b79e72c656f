# The command `weir`: reads options, composes, prints. It decides nothing about MQTT.
#
# What a command needs is imported inside it, so that `weir --version` and `weir --help` answer at once.
from pathlib import Path
from typing import Annotated, Final

import typer

from cli import analytics, clients, limit, nodes
from cli.bench import bench
from cli.dashboard import dashboard
from cli.demo import demo
from cli.first_try import pub, sub
from cli.options import Assignments, ConfigFile, load_settings, refuse
from cli.overload import overload
from cli.simulate import simulate
from cli.top import top
from cli.why import why

TRANSPORTS: Final = ("tcp", "tls", "ws", "wss")

app = typer.Typer(
    name="weir",
    help="Weir, an MQTT broker that stays up under overload and can say why it slowed you down.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a plain traceback is what a bug report needs
)
config_app = typer.Typer(help="Look at the configuration without starting anything.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(analytics.app, name="analytics")
app.add_typer(clients.app, name="clients")
app.add_typer(limit.app, name="limit")
app.command()(nodes.stop)
app.command()(nodes.restart)
app.command()(nodes.reload)
app.command()(nodes.status)
app.command("nodes")(nodes.list_nodes)
app.command()(nodes.logs)
app.command()(why)
app.command()(overload)
app.command()(top)
app.command()(simulate)
app.command()(dashboard)
app.command()(demo)


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
    name: Annotated[
        str | None, typer.Option(metavar="NODE", help="The node's name, if there are several here.")
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Processes that serve clients.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Listen here instead of 127.0.0.1 and ::1. Repeatable.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Listen on this TCP port; 0 takes any free one.")
    ] = None,
    assignments: Assignments = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it serves; it goes on, and its log goes to its folder.")
    ] = False,
    tell: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start a node: in the foreground until SIGTERM or Ctrl-C, or detached until `weir stop`.

    Settings come from the file, then the environment (WEIR_LIMITS__PACKET_BYTES=2MiB), then these options;
    the later ones win. `weir config show` prints them all.
    """
    from broker.config.sources import Given

    options = []
    if host:
        options += [Given(f"listeners.{transport}.host", host, "--host") for transport in TRANSPORTS]
    if port is not None:
        options.append(Given("listeners.tcp.port", port, "--port"))
    if name is not None:
        options.append(Given("node.name", name, "--name"))
    if workers is not None:
        options.append(Given("node.workers", workers, "--workers"))
    loaded = load_settings(config, assignments, options)

    from cli.starting import start_detached, start_here

    if detach:
        start_detached(loaded.config)
    start_here(loaded.config, tell)


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
    from broker.auth.passwords import ITERATIONS
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
        refuse(str(error))
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
    from supervisor.redis_address import check_url
    from supervisor.redis_server import RedisUnusable
    from supervisor.start import check_files

    settings = load_settings(config, assignments).config
    wrong = check_files(settings)
    try:
        if settings.redis.url:
            check_url(settings.redis.url)
    except RedisUnusable as error:
        wrong = wrong or str(error)
    if wrong:
        refuse(wrong)
    typer.echo("The configuration is fine.")


@config_app.command()
def show(
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Print every setting with its value in force and where it comes from."""
    settings = list(load_settings(config, assignments).describe())
    if as_json:
        import json

        rows = {one.key: {"value": one.value, "source": one.source} for one in settings}
        typer.echo(json.dumps(rows, indent=2))
        return
    width = max(len(f"{one.key} = {one.text}") for one in settings)
    for one in settings:
        typer.echo(f"{f'{one.key} = {one.text}':<{width}}  # {one.source}")


for _command in (pub, sub, bench):
    app.command()(_command)
