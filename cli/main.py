# The command `weir`: reads options, calls the modules that do the work, and prints.
#
# A command imports what it needs inside its function, so that `weir --version` and `weir --help` start quickly.
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import analytics, applications, ban, clients, limit, nodes, placement, queues, retained, sessions
from cli.backup import backup, restore
from cli.bench import bench
from cli.dashboard import dashboard
from cli.demo import demo
from cli.options import Assignments, ConfigFile, load_settings, refuse
from cli.overload import overload
from cli.pubsub import pub, sub
from cli.simulate import simulate
from cli.top import top
from cli.why import why

if TYPE_CHECKING:
    from broker.config.schema import Config

TRANSPORTS: Final = ("tcp", "tls", "ws", "wss")

app = typer.Typer(
    name="weir",
    help="Weir, an MQTT broker that stays up under overload and can explain why it slowed a client down.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a plain traceback is what a bug report needs
)
config_app = typer.Typer(help="Check and show the configuration without starting a node.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(analytics.app, name="analytics")
app.add_typer(clients.app, name="clients")
app.add_typer(sessions.app, name="sessions")
app.add_typer(queues.app, name="queue")
app.add_typer(applications.app, name="applications")
app.add_typer(retained.app, name="retained")
app.add_typer(limit.app, name="limit")
app.add_typer(ban.app, name="ban")


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
            "--version", callback=_print_version, is_eager=True, help="Print the version, and whether Weir is compiled."
        ),
    ] = False,
) -> None:
    """Weir, an MQTT broker that stays up under overload and can explain why it slowed a client down."""


def start(
    config: ConfigFile = None,
    name: Annotated[
        str | None, typer.Option(metavar="NODE", help="Name of the node, needed for several on one machine.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of worker processes. Default: one per core.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Listen on this address instead of 127.0.0.1 and ::1. Repeatable."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="TCP port to listen on; 0 means any free port.")
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Share this Redis or Valkey with other nodes: together they are one broker."),
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(metavar="HOSTS", help="Keep logs in this Apache Kafka: HOST:PORT of some brokers, with commas."),
    ] = None,
    assignments: Assignments = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Run in the background and return once the node serves. The log is in the node's folder."
        ),
    ] = False,
    tell: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start a node: in the foreground until SIGTERM or Ctrl-C, or with --detach until `weir stop`.

    Settings are read from the file, then from the environment (WEIR_LIMITS__PACKET_BYTES=2MiB), then from these
    options. A later source overrides an earlier one. `weir config show` prints all settings.
    """
    from broker.config.sources import Given, from_assignments, load

    options = []
    if host:
        options += [Given(f"listeners.{transport}.host", host, "--host") for transport in TRANSPORTS]
    if port is not None:
        options.append(Given("listeners.tcp.port", port, "--port"))
    if name is not None:
        options.append(Given("node.name", name, "--name"))
    if workers is not None:
        options.append(Given("node.workers", workers, "--workers"))
    if redis is not None:
        options.append(Given("redis.url", redis, "--redis"))
    if kafka is not None:
        options.append(Given("kafka.hosts", kafka, "--kafka"))
    loaded = load_settings(config, assignments, options)

    from cli.start import start_detached, start_here

    if detach:
        start_detached(loaded.config)
    start_here(
        loaded.config, tell, lambda: load(config, options=[*from_assignments(assignments or []), *options]).config
    )


def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Password file (setting access.password_file).")],
    user: Annotated[str, typer.Argument(metavar="USER", help="User name.")],
    create: Annotated[
        bool, typer.Option("--create", help="Create FILE if it does not exist. Existing users are kept.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove USER from FILE.")] = False,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000_000,
            metavar="N",
            help="Rounds of PBKDF2: the cost of each guess, and of each first log-in. [210000]",
        ),
    ] = None,
) -> None:
    """Set the password of a user. A terminal is asked twice; other input is read as one line.

    A running node applies the change after `weir reload`.
    """
    from broker.auth.passwords import ITERATIONS
    from cli.passwords import PasswordFileError, check_user, delete_user, read, set_password

    try:
        if delete:
            delete_user(file, user)
            typer.echo(f"User {user} was removed from {file}.")
            return
        check_user(user)  # before the password prompt
        read(file, create)
        new = set_password(file, user, _ask_password(), iterations or ITERATIONS, create)
    except PasswordFileError as error:
        refuse(str(error))
    typer.echo(f"User {user} was added to {file}." if new else f"The password of user {user} in {file} was changed.")


def _ask_password() -> bytes:
    import sys

    if sys.stdin.isatty():
        typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        return typed.encode()
    return sys.stdin.buffer.readline().rstrip(b"\r\n")


@config_app.command()
def check(
    config: ConfigFile = None,
    assignments: Assignments = None,
    budget: Annotated[
        bool, typer.Option("--budget", help="Print the most memory that clients can make it use.")
    ] = False,
) -> None:
    """Check whether a node would start with these settings. Exit code 0 if it would, else 2."""
    from supervisor.redis_address import check_settings
    from supervisor.redis_server import RedisUnusable
    from supervisor.start import check_files

    settings = load_settings(config, assignments).config
    wrong = check_files(settings)
    try:
        if settings.redis.url:
            check_settings(settings.redis)
    except RedisUnusable as error:
        wrong = wrong or str(error)
    if wrong:
        refuse(wrong)
    if settings.kafka.hosts:
        from supervisor.kafka_survey import KafkaUnusable, ask_kafka

        try:
            about_kafka = ask_kafka(settings)
        except KafkaUnusable as error:
            if settings.application.required:
                refuse(str(error))
            about_kafka = [f"Warning: {error}"]
        for line in about_kafka:
            typer.echo(line)
    typer.echo("The configuration is valid.")
    if budget:
        _print_budget(settings)


def _print_budget(settings: "Config") -> None:
    from broker.config.budget import describe
    from broker.control.machine import memory_limit
    from supervisor.start import worker_count

    for line in describe(settings, memory_limit(settings.node.memory), worker_count(settings)):
        typer.echo(line)


@config_app.command()
def show(
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every setting with its effective value and its source."""
    settings = list(load_settings(config, assignments).describe())
    if as_json:
        import json

        rows = {one.key: {"value": one.value, "source": one.source} for one in settings}
        typer.echo(json.dumps(rows, indent=2))
        return
    width = max(len(f"{one.key} = {one.text}") for one in settings)
    for one in settings:
        typer.echo(f"{f'{one.key} = {one.text}':<{width}}  # {one.source}")


# In the order in which `weir --help` lists them.
app.command()(start)
app.command()(nodes.stop)
app.command()(nodes.restart)
app.command()(nodes.reload)
app.command()(nodes.status)
app.command("nodes")(nodes.list_nodes)
app.command()(nodes.logs)
app.command()(overload)
app.command()(why)
app.command()(top)
app.command()(dashboard)
app.command()(placement.drain)
app.command()(placement.undrain)
app.command()(placement.rebalance)
app.command()(backup)
app.command()(restore)
app.command()(passwd)
app.command()(pub)
app.command()(sub)
app.command()(bench)
app.command()(simulate)
app.command()(demo)


def _flow_help(of: typer.Typer) -> None:
    """Make one line of each paragraph of a docstring: typer keeps the line ends of all but the first one."""
    for command in of.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = command.help or "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for group in of.registered_groups:
        if group.typer_instance is not None:
            _flow_help(group.typer_instance)


_flow_help(app)
