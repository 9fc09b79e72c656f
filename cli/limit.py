# Commands about the limits of single clients: `weir limit set`, `list` and `drop`.
from typing import Annotated, Any, Final

import typer

from cli.clients import ClientId, visible
from cli.nodes import duration
from cli.options import AsJson, ConfigFile, Folder, Name, refuse
from cli.printing import console, print_json, table_of

LEAST: Final = 0.001  # seconds

app = typer.Typer(
    help="Give a client of a node another limit for some time, or let overload protection leave it alone.",
    no_args_is_help=True,
)


@app.command("set")
def set_limit(
    client: ClientId,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="TIME", help="When it ends by itself: 90s, 15m, 1h, 7d; 30d at most.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the log and whoever asks later.")],
    rate: Annotated[
        str,
        typer.Option(metavar="RATE", help="How many messages it may publish: 100/s, or 100:1,5000:60 (COUNT:SECONDS)."),
    ] = "",
    no_protection: Annotated[
        bool, typer.Option("--no-protection", help="Overload protection does not hold it back; quotas still do.")
    ] = False,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Limit a client, or exempt it, on this node: at once if it is connected, else when it comes.

    It takes the place of quotas.session.incoming_messages, and of a former limit of this client. It is kept when
    workers or the node are restarted, and ends by itself. What is to stay belongs into the configuration.
    """
    from cli.asking import Answers, chosen

    seconds = _seconds(ttl)
    told = Answers(chosen(name, folder, config)).ask(
        "limit_set", client=client, rate=rate, exempt=no_protection, seconds=seconds, reason=reason
    )
    if as_json:
        return print_json(told)
    content = _content(rate, no_protection)
    said = f"The client {visible(client)} has a limit of its own for {duration(seconds)}: {content}."
    console().print(f"{said} {_felt(told['workers'])}", highlight=False, soft_wrap=True)


@app.command("list")
def list_limits(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the clients that have a limit of their own; the next to end first."""
    from cli.asking import Answers, chosen

    told = Answers(chosen(name, folder, config)).ask("limit_list")
    if as_json:
        return print_json(told)
    screen = console()
    if not told["limits"]:
        return screen.print("No client has a limit of its own.")
    table = table_of("client", "limit", "ends in", "set by", "because", right=("ends in",))
    for one in told["limits"]:
        content = _content(one["rate"], one["exempt"])
        table.add_row(
            visible(one["client"]), content, duration(one["left"]), visible(one["by"]), visible(one["reason"])
        )
    screen.print(table)


@app.command()
def drop(
    client: ClientId,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """End the limit of a client before its time. Exit code 1 if it has none."""
    from cli.asking import Answers, chosen

    told = Answers(chosen(name, folder, config)).ask("limit_drop", client=client)
    if as_json:
        return print_json(told)
    console().print(f"The limit of the client {visible(client)} has ended: the configuration holds for it again.")


def _seconds(ttl: str) -> float:
    from broker.config.values import Duration
    from broker.overload.overrides import LONGEST

    try:
        return Duration(LEAST, LONGEST).take(ttl)
    except ValueError as error:
        refuse(f'--ttl = "{ttl}" cannot be: it must be {error}.')


def _content(rate: str, exempt: bool) -> str:
    said = [f"{rate} messages" if rate else "", "not held back by overload protection" if exempt else ""]
    return ", ".join(one for one in said if one)


def _felt(workers: list[Any]) -> str:
    if not workers:
        return "It is not connected: the limit holds when it comes."
    return f"It is connected, at worker {workers[0]}, and feels it from now on."
