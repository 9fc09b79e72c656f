# Commands for the sessions of a node: `weir sessions list`, `show` and `drop`.
from typing import Annotated, Any

import typer

from cli.clients import ClientId, print_filters, printable, visible
from cli.confirm import Yes, confirm
from cli.nodes import duration, short
from cli.options import AsJson, ConfigFile, Folder, Name, refuse
from cli.printing import console, counted, list_of, print_facts, print_json, table_of

app = typer.Typer(help="List, inspect and end sessions.", no_args_is_help=True)


@app.command("list")
def list_sessions(
    match: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only sessions with TEXT in their client id.")] = "",
    away: Annotated[bool, typer.Option("--away", help="Only sessions whose client is not connected.")] = False,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Only what is left in Redis of sessions that could not be read.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Maximum number of sessions.")] = 1000,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, and what waits for their clients; the oldest session of each worker first.

    A narrow terminal gets fewer columns. A file, a program or --json gets everything.
    """
    from cli.control_client import ControlClient, chosen_node

    node = ControlClient(chosen_node(name, folder, config))
    if quarantined:
        if match or away:
            refuse("--quarantined lists all such sessions, and takes neither TEXT nor --away.")
        return _list_quarantined(node.request("sessions_quarantined", limit=limit), as_json)
    answer = node.request("sessions", limit=limit, match=match, away=away)
    if as_json:
        return print_json(answer)
    screen = console()
    numbers = ("filters", "waiting", "bytes", "in flight", "worker")
    rows = [_row(one) for one in answer["sessions"]]
    columns = ("client", "user", "state", "expires in", *numbers, "stored")
    screen.print(
        list_of(columns, rows, screen, right=numbers, spare=("worker", "user", "stored", "filters", "in flight"))
    )
    more = ", and there are more: --limit" if answer["more"] else ""
    screen.print(f"{counted(len(answer['sessions']), 'session')}{more}")
    if answer["missing"]:
        screen.print(f"{counted(answer['missing'], 'worker')} could not be asked, and may have more.")


@app.command()
def show(
    client: ClientId,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show everything about one session. Exit code 1 if there is none."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("session", client=client)
    if as_json:
        return print_json(answer)
    screen = console()
    print_facts(screen, _facts(answer))
    filters = table_of("filter", "QoS", "identifier", "options", right=("QoS", "identifier"))
    for one in answer["filters"]:
        identifier = "" if one["identifier"] is None else str(one["identifier"])
        filters.add_row(visible(one["filter"]), str(one["qos"]), identifier, _options(one))
    print_filters(screen, filters, answer["subscriptions"])


@app.command()
def drop(
    clients: Annotated[list[str], typer.Argument(metavar="CLIENT...", help="The client ids.")],
    yes: Yes = False,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """End sessions, with all that waits for their clients.

    Clients that are connected are disconnected (0x98), and may connect again to a new session. Wills are published as
    at every end of a session. Exit code 1 if a client has no session; those of the others end nevertheless.
    """
    from cli.control_client import ControlClient, RequestFailed, chosen_node

    node = chosen_node(name, folder, config)
    confirm(f"End {counted(len(clients), 'session')}, with all messages that wait?", yes)
    dropped: list[dict[str, Any]] = []
    code = 0
    for client in clients:
        try:
            dropped.append(ControlClient(node).try_request("session_drop", client=client))
        except RequestFailed as error:
            typer.echo(f"weir: {error}", err=True)
            code = max(code, error.code)
            continue
        if not as_json:
            console().print(f"The session of client {visible(client)} has ended.", highlight=False, soft_wrap=True)
    if as_json:
        print_json({"dropped": dropped})
    if code:
        raise typer.Exit(code)


def _list_quarantined(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return print_json(answer)
    screen = console()
    columns = ("client", "fields", "packs", "bytes")
    rows = [
        [printable(one["client"]), _number(one["fields"]), _number(one["packs"]), short(one["bytes"])]
        for one in answer["sessions"]
    ]
    screen.print(list_of(columns, rows, screen, right=columns[1:]))
    more = ", and there are more: --limit" if answer["more"] else ""
    screen.print(f"{counted(len(rows), 'session')} could not be read{more}")
    if rows:
        screen.print("Their clients have new sessions. The log has the reason of each: event session_damaged.")


def _number(number: int | None) -> str:
    return "none" if number is None else str(number)


def _row(one: dict[str, Any]) -> list[str]:
    numbers = (one["subscriptions"], one["waiting"], short(one["waiting_bytes"]), one["inflight"], one["worker"])
    stored = "durable" if one["durable"] else "in memory"
    user = printable(one["user"] or "")
    return [printable(one["client"]), user, _state(one), _expires(one), *map(str, numbers), stored]


def _state(one: dict[str, Any]) -> str:
    since = duration(one["seconds"])
    return f"connected {since}" if one["connected"] else f"away {since}"


def _expires(one: dict[str, Any]) -> str:
    if one["connected"]:
        return f"{duration(one['expiry'])} after it" if one["expiry"] else "with it"
    return duration(one["expires_in"])


def _options(one: dict[str, Any]) -> str:
    named = [("no local", one["no_local"]), ("retain as published", one["retain_as_published"])]
    return ", ".join(words for words, is_set in named if is_set)


def _facts(answer: dict[str, Any]) -> list[tuple[str, str]]:
    since = duration(answer["seconds"])
    connected = f"connected from {answer['address']} for {since}"
    expiry = f"{answer['expiry']} s after the connection ends" if answer["expiry"] else "with the connection"
    delay = f", {answer['will_delay']} s after the connection ends" if answer["will_delay"] else ""
    will = answer["will_topic"]
    exchanges = (
        f"{answer['qos2_unreceived']} wait for PUBREC, {answer['qos2_uncompleted']} for PUBCOMP, "
        f"{answer['qos2_unreleased']} of the client for PUBREL"
    )
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(answer["drops"].items()))
    return [
        ("client", visible(answer["client"])),
        ("user", visible(answer["user"] or "") or "anonymous"),
        ("state", visible(connected) if answer["connected"] else f"away for {since}"),
        ("ends", expiry if answer["connected"] else f"in {duration(answer['expires_in'])}"),
        ("stored", "in Redis" if answer["durable"] else "in the memory of its worker"),
        ("worker", str(answer["worker"])),
        ("will", "none" if will is None else f"on {visible(will)}{delay}"),
        ("waiting", f"{counted(answer['waiting'], 'message')}, {counted(answer['waiting_bytes'], 'byte')}"),
        ("in flight", f"{counted(answer['inflight'], 'message')} sent but not acknowledged"),
        ("QoS 2", exchanges),
        ("dropped", dropped or "none"),
        ("to be told", counted(answer["untold"], "lost message")),
        ("filters", str(answer["subscriptions"])),
    ]
