# Commands about the clients of a node: `weir clients list`, `show` and `kick`.
from typing import Annotated, Any, Final

import typer

from cli.options import AsJson, ConfigFile, Folder, Name
from cli.printing import console, print_json, table_of

VERSIONS: Final = {0: "", 3: "3.1", 4: "3.1.1", 5: "5.0"}

app = typer.Typer(help="Look at the clients of a node, and part from one.", no_args_is_help=True)

ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help="The client id.")]


@app.command("list")
def list_clients(
    match: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only those with TEXT in their id.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="At most so many.")] = 1000,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List clients, connected or away, in the order their sessions began."""
    from cli.asking import Answers, chosen

    told = Answers(chosen(name, folder, config)).ask("clients", limit=limit, match=match)
    if as_json:
        return print_json(told)
    numbers = ("worker", "filters", "in flight", "waiting")
    table = table_of("client", "address", "over", "MQTT", "user", *numbers, right=numbers)
    for one in told["clients"]:
        table.add_row(
            visible(one["client"]),
            one["address"] if one["connected"] else "away",
            one["transport"],
            VERSIONS.get(one["version"], str(one["version"])),
            visible(one["user"]),
            *(str(one[key]) for key in ("worker", "subscriptions", "inflight", "waiting")),
        )
    screen = console()
    screen.print(table)
    screen.print(f"{len(told['clients'])} clients{', and there are more: --limit' if told['more'] else ''}")


@app.command()
def show(
    client: ClientId,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show all of one client. Exit code 1 if there is none of that id."""
    from cli.asking import Answers, chosen

    told = Answers(chosen(name, folder, config)).ask("client", client=client)
    if as_json:
        return print_json(told)
    screen = console()
    table = table_of("", "")
    for label, value in _facts(told):
        table.add_row(label, value)
    screen.print(table)
    filters = table_of("filter", "QoS", right=("QoS",))
    for one in told["filters"]:
        filters.add_row(visible(one["filter"]), str(one["qos"]))
    if told["filters"]:
        screen.print(filters)
    if told["subscriptions"] > len(told["filters"]):
        screen.print(f"and {told['subscriptions'] - len(told['filters'])} more filters")


@app.command()
def kick(
    client: ClientId,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Disconnect a client (0x98); its session stays as long as it asked for. Exit code 1 if it is not connected."""
    from cli.asking import Answers, chosen

    told = Answers(chosen(name, folder, config)).ask("kick", client=client)
    if as_json:
        return print_json({"client": client, **told})
    typer.echo(f"The client {visible(client)} was disconnected.")


def visible(text: str) -> str:
    """*text* that a client chose, so that it can neither paint on the terminal nor be taken for markup."""
    from rich.markup import escape

    return escape("".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text))


def _facts(told: dict[str, Any]) -> list[tuple[str, str]]:
    state = f"connected from {told['address']} over {told['transport']}" if told["connected"] else "away"
    return [
        ("client", visible(told["client"])),
        ("state", state),
        ("worker", str(told["worker"])),
        ("MQTT", VERSIONS.get(told["version"], str(told["version"]))),
        ("user", visible(told["user"]) or "anonymous"),
        ("session expiry", f"{told['expiry']} s after it has gone"),
        ("will", "none" if told["will_topic"] is None else f"on {visible(told['will_topic'])}"),
        ("in flight", f"{told['inflight']} messages sent and not acknowledged"),
        ("waiting", f"{told['waiting']} messages, {told['unsent_bytes']} bytes unsent"),
        ("filters", str(told["subscriptions"])),
    ]
