# Commands for overrides of a client's limits: `weir limit set`, `list` and `drop`.
from typing import Annotated, Any, Final

import typer

from cli.clients import ClientId, described, visible
from cli.nodes import duration
from cli.options import AsJson, ConfigFile, Folder, Name, refuse
from cli.printing import console, print_json, table_of

LEAST: Final = 0.001  # seconds

app = typer.Typer(
    help="Override a client's limits, or exempt it from overload protection, until a deadline.",
    no_args_is_help=True,
)


@app.command("set")
def set_limit(
    client: ClientId,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="TIME", help="Lifetime of the override: 90s, 15m, 1h, 7d; at most 30d.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason, for the log and `weir limit list`.")],
    rate: Annotated[
        str,
        typer.Option(metavar="RATE", help="Messages it may publish: 100/s, or 100:1,5000:60 (COUNT:SECONDS)."),
    ] = "",
    no_protection: Annotated[
        bool, typer.Option("--no-protection", help="Exempt the client from credits; quotas and gates still apply.")
    ] = False,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Override the limits of a client on this node, now or when it connects.

    The override replaces quotas.session.incoming_messages and any former override of this client. It survives restarts
    of workers and node, and ends after --ttl. Permanent limits belong in the configuration: [[clients.overrides]].
    """
    from cli.control_client import ControlClient, chosen_node

    seconds = _seconds(ttl)
    answer = ControlClient(chosen_node(name, folder, config)).request(
        "limit_set", client=client, rate=rate, exempt=no_protection, seconds=seconds, reason=reason
    )
    if as_json:
        return print_json(answer)
    content = _content(rate, no_protection)
    said = f"The limits of client {visible(client)} are overridden for {duration(seconds)}: {content}."
    console().print(f"{said} {_applied(answer['workers'])}", highlight=False, soft_wrap=True)


@app.command("list")
def list_limits(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the overrides in force: first those with an end, the next to end first, then the configured ones."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("limit_list")
    if as_json:
        return print_json(answer)
    screen = console()
    if not answer["limits"] and not answer["configured"]:
        return screen.print("No client has an override.")
    table = table_of("client", "limit", "ends in", "set by", "because", right=("ends in",))
    for one in answer["limits"]:
        content = _content(one["rate"], one["exempt"])
        table.add_row(
            visible(one["client"]), content, duration(one["left"]), visible(one["by"]), visible(one["reason"])
        )
    for one in answer["configured"]:
        table.add_row(*described(one), "never", "configuration", "clients.overrides")
    screen.print(table)


@app.command()
def drop(
    client: ClientId,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove the override of a client. Exit code 1 if it has none."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("limit_drop", client=client)
    if as_json:
        return print_json(answer)
    console().print(f"The override of client {visible(client)} was removed. The configuration applies to it again.")


def _seconds(ttl: str) -> float:
    from broker.config.values import Duration
    from broker.overload.quotas.overrides import LONGEST

    try:
        return Duration(LEAST, LONGEST).take(ttl)
    except ValueError as error:
        refuse(f'--ttl "{ttl}" is not valid: it must be {error}.')


def _content(rate: str, exempt: bool) -> str:
    said = [f"{rate} messages" if rate else "", "exempt from credits" if exempt else ""]
    return ", ".join(one for one in said if one)


def _applied(workers: list[Any]) -> str:
    if not workers:
        return "The client is not connected. The override applies when it connects."
    return f"The client is connected to worker {workers[0]}; the override applies now."
