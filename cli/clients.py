# Commands for the clients of a node: `weir clients list`, `show` and `kick`.
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import AsJson, ConfigFile, Folder, Name
from cli.printing import console, counted, print_facts, print_json, table_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

VERSIONS: Final = {0: "", 3: "3.1", 4: "3.1.1", 5: "5.0"}
KINDS: Final = {
    "application": "APPLICATION",
    "device": "DEVICE",
    "non_persistent": "not persistent",
    "parting": "APPLICATION, then DEVICE",  # once it has been sent all of its log
}

app = typer.Typer(help="List, inspect and disconnect clients.", no_args_is_help=True)

ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help="The client id.")]


@app.command("list")
def list_clients(
    match: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only clients with TEXT in their client id.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Maximum number of clients.")] = 1000,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List connected and disconnected clients, oldest session first."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("clients", limit=limit, match=match)
    if as_json:
        return print_json(answer)
    numbers = ("worker", "filters", "in flight", "waiting")
    table = table_of("client", "kind", "address", "over", "MQTT", "user", *numbers, right=numbers)
    for one in answer["clients"]:
        table.add_row(
            visible(one["client"]),
            KINDS[one["kind"]],
            one["address"] if one["connected"] else "away",
            one["transport"],
            VERSIONS.get(one["version"], str(one["version"])),
            visible(one["user"]),
            *(str(one[key]) for key in ("worker", "subscriptions", "inflight", "waiting")),
        )
    screen = console()
    screen.print(table)
    more = ", and there are more: --limit" if answer["more"] else ""
    screen.print(f"{counted(len(answer['clients']), 'client')}{more}")


@app.command()
def show(
    client: ClientId,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show everything about one client. Exit code 1 if there is no such client."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("client", client=client)
    if as_json:
        return print_json(answer)
    screen = console()
    print_facts(screen, _facts(answer))
    filters = table_of("filter", "QoS", right=("QoS",))
    for one in answer["filters"]:
        filters.add_row(visible(one["filter"]), str(one["qos"]))
    print_filters(screen, filters, answer["subscriptions"])


@app.command()
def kick(
    client: ClientId,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Disconnect a client (0x98). Its session is kept until it expires. Exit code 1 if the client is not connected."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("kick", client=client)
    if as_json:
        return print_json({"client": client, **answer})
    typer.echo(f"The client {visible(client)} was disconnected.")


def print_filters(screen: "Console", filters: "Table", most: int) -> None:
    """Print the table *filters* of a session, which has *most* filters."""
    if filters.row_count:
        screen.print(filters)
    if most > filters.row_count:
        screen.print(f"and {most - filters.row_count} more filters")


def visible(text: str) -> str:
    """*text*, which a client chose, with control characters and markup escaped."""
    from rich.markup import escape

    return escape(printable(text))


def printable(text: str) -> str:
    """*text*, which a client chose, with control characters escaped."""
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)


def described(override: dict[str, Any]) -> tuple[str, str]:
    """(what names its clients, its settings) of an override of the configuration."""
    return f"{override['by']} {visible(override['name'])}", visible(override["settings"])


def _limits(override: dict[str, Any] | None) -> str:
    if override is None:
        return "as all clients"
    names, settings = described(override)
    return f"{settings} (clients.overrides, {names})"


def _facts(answer: dict[str, Any]) -> list[tuple[str, str]]:
    state = f"connected from {answer['address']} over {answer['transport']}" if answer["connected"] else "away"
    return [
        ("client", visible(answer["client"])),
        ("kind", KINDS[answer["kind"]]),
        ("state", state),
        ("worker", str(answer["worker"])),
        ("MQTT", VERSIONS.get(answer["version"], str(answer["version"]))),
        ("user", visible(answer["user"]) or "anonymous"),
        ("session expiry", f"{answer['expiry']} s after the connection ends"),
        ("will", "none" if answer["will_topic"] is None else f"on {visible(answer['will_topic'])}"),
        ("in flight", f"{counted(answer['inflight'], 'message')} sent but not acknowledged"),
        ("waiting", f"{counted(answer['waiting'], 'message')}, {counted(answer['unsent_bytes'], 'byte')} unsent"),
        ("filters", str(answer["subscriptions"])),
        ("limits", _limits(answer["configured"])),
    ]
