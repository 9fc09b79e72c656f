# Commands for the APPLICATION clients of a node: `weir applications list`, `show` and `reset`.
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.clients import ClientId, printable, visible
from cli.confirm import Yes, confirm
from cli.nodes import duration, short
from cli.options import AsJson, ConfigFile, Folder, Name, refuse
from cli.printing import console, counted, list_of, print_facts, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from supervisor.folder import NodeFolder

NAMED: Final = ("earliest", "latest")

app = typer.Typer(help="Look at the logs of APPLICATION clients, and where they are read.", no_args_is_help=True)


@app.command("list")
def list_applications(
    match: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Only clients and shared logs with TEXT in their name.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Maximum number of each.")] = 1000,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List APPLICATION clients and shared logs with their lags: records that were not passed on to clients.

    A record has up to 200 messages, which were published together. A shared log has a line for each share name that
    reads it; partitions are read by the members that are connected and not slow.
    """
    from cli.control_client import ControlClient, chosen_node

    node = chosen_node(name, folder, config)
    answer = ControlClient(node).request("applications", limit=limit, match=match)
    shared, why = shared_logs(node, limit, match)
    if as_json:
        return print_json({**answer, "shared": shared and shared["shared"], "more_shared": shared and shared["more"]})
    screen = console()
    numbers = ("lag", "waiting", "in flight", "worker")
    rows = [
        [
            printable(one["client"]),
            _state(one),
            _number(one["lag"]),
            *(str(one[key]) for key in ("waiting", "inflight", "worker")),
            printable(one["trouble"]),
        ]
        for one in answer["applications"]
    ]
    columns = ("client", "state", *numbers, "trouble")
    screen.print(list_of(columns, rows, screen, right=numbers, spare=("worker", "in flight", "waiting")))
    more = ", and there are more: --limit" if answer["more"] else ""
    screen.print(f"{counted(len(rows), 'APPLICATION client')}{more}")
    if answer["missing"]:
        screen.print(f"{counted(answer['missing'], 'worker')} could not be asked, and may have more.")
    if why:
        typer.echo(f"Shared logs are not known: {why}", err=True)
    elif shared and shared["shared"]:
        _print_shared(screen, shared)


def shared_logs(node: "NodeFolder", limit: int, match: str = "") -> tuple[dict[str, Any] | None, str]:
    """The shared logs of *node*; or None, and why they are not known."""
    from cli.control_client import ControlClient, RequestFailed

    try:
        return ControlClient(node).try_request("shared_logs", limit=limit, match=match), ""
    except RequestFailed as error:
        return None, str(error)


def _print_shared(screen: "Console", shared: dict[str, Any]) -> None:
    rows = [
        [
            printable(shared_name(one)),
            f"{one['connected']} of {one['members']}",
            f"{len(one['reads'])} of {one['partitions']}",
            _number(one["lag"]),
            _ago(one["oldest"]),
            printable(one["trouble"]),
        ]
        for one in shared["shared"]
    ]
    columns = ("shared log", "connected", "partitions read", "lag", "oldest", "trouble")
    numbers = ("connected", "partitions read", "lag", "oldest")
    screen.print(list_of(columns, rows, screen, right=numbers, spare=("connected", "oldest")))
    more = ", and there are more: --limit" if shared["more"] else ""
    screen.print(f"{counted(len(rows), 'group')} with shared logs{more}")


@app.command()
def show(
    client: ClientId,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the log of a client, and how far it was read. Exit code 1 if the client has no session."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("application", client=client)
    if as_json:
        return print_json(answer)
    print_facts(console(), _facts(answer))


@app.command()
def reset(
    client: ClientId,
    to: Annotated[
        str,
        typer.Option("--to", metavar="TIME|OFFSET", help="2026-11-27T08:00, an offset, earliest or latest."),
    ],
    yes: Yes = False,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Have a client that is away go on elsewhere in its log: get messages again, or skip some.

    A TIME without an offset from UTC is local. Messages that wait in Redis are removed, but for those in flight: they
    are in the log. Exit code 1 if the client has no session.
    """
    from cli.control_client import ControlClient, chosen_node

    where, time = _place(to)
    node = chosen_node(name, folder, config)
    confirm(f"Have client {client!r} go on at {to} in its log?", yes)
    answer = ControlClient(node).request("application_reset", client=client, to=where, time=time)
    if as_json:
        return print_json(answer)
    removed = f", and {counted(answer['removed'], 'message')} in Redis removed" if answer["removed"] else ""
    line = f"Client {visible(client)} goes on at offset {answer['to']} in place of {answer['from']}{removed}."
    console().print(line, highlight=False, soft_wrap=True)


@app.command("reset-shared")
def reset_shared(
    shared: Annotated[str, typer.Argument(metavar="SHARED", help="A shared log: $share/NAME/FILTER.")],
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="2026-11-27T08:00, earliest or latest.")],
    yes: Yes = False,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Have a group of clients that are all away go on elsewhere in the log that they share.

    Messages that were passed on to clients already stay in their queues. Exit code 1 if there is no such group.
    """
    from cli.control_client import ControlClient, chosen_node

    where, time = _place(to)
    if where not in ("", *NAMED):
        refuse("--to: a shared log has partitions, each with offsets of its own; give a time, earliest or latest.")
    node = chosen_node(name, folder, config)
    confirm(f"Have all clients of {shared!r} go on at {to} in its log?", yes)
    answer = ControlClient(node).request("shared_log_reset", name=shared, to=where, time=time)
    if as_json:
        return print_json(answer)
    left = counted(answer["lag"], "record")
    console().print(f"{visible(shared)} goes on at {to}, with {left} to be read.", highlight=False, soft_wrap=True)


def _place(to: str) -> tuple[str, float]:
    """An offset or a name, and 0.0; or "" and a Unix time in seconds."""
    if to in NAMED or (to.isascii() and to.isdigit() and len(to) <= 18):
        return to, 0.0
    try:
        return "", datetime.fromisoformat(to).timestamp()
    except (ValueError, OverflowError, OSError):
        refuse(f"--to {to!r} is no offset, no time such as 2026-11-27T08:00, and neither earliest nor latest.")


def _state(one: dict[str, Any]) -> str:
    since = duration(one["seconds"])
    return f"connected {since}" if one["connected"] else f"away {since}"


def _number(number: int | None) -> str:
    return "unknown" if number is None else str(number)


def _ago(seconds: float | None) -> str:
    """When the oldest record was offered that was not passed on; "": there is none, or it is not known."""
    return "" if seconds is None else f"{duration(seconds)} ago"


def shared_name(one: dict[str, Any]) -> str:
    return f"$share/{one['name']}/{one['filter']}"


def group_line(group: dict[str, Any]) -> str:
    """What is told of a group: its members, what they read, and what was not passed on to them."""
    lag = "unknown" if group["lag"] is None else counted(group["lag"], "record")
    oldest = "" if group["oldest"] is None else f", the oldest {_ago(group['oldest'])}"
    members = f"{group['connected']} of {counted(group['members'], 'member')} connected"
    return f"{members}, {len(group['reads'])} of {counted(group['partitions'], 'partition')} read, lag {lag}{oldest}"


def _shared(one: dict[str, Any]) -> str:
    """What is told of a log that the client shares."""
    lag = "unknown" if one["lag"] is None else counted(one["lag"], "record")
    text = f"reads {len(one['reads'])} of {counted(one['partitions'], 'partition')}, lag there {lag}"
    reasons = "; ".join(printable(one[key]) for key in ("waits", "trouble") if one[key])
    text = f"{text} ({reasons})" if reasons else text
    group = one.get("group")
    return f"{text}; all members: {group_line(group)}" if group else text


def _facts(answer: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [("client", visible(answer["client"])), ("state", _state(answer)), ("topic", answer["topic"] or "none yet")]
    if answer["lag"] is not None:
        behind = answer["lag"]
        facts.append(("lag", f"{counted(behind, 'record')} ({answer['position']} of {answer['end']})"))
    waiting = f"{counted(answer['waiting'], 'message')}, {counted(answer['waiting_bytes'], 'byte')}"
    facts += [("waiting in Redis", waiting), ("in flight", counted(answer["inflight"], "message"))]
    if answer.get("oldest") is not None:
        facts.append(("oldest message", f"{duration(answer['oldest'])} ago"))
    if "first" in answer:
        facts.append(("oldest record", f"offset {answer['first']}"))
        kept = f"{duration(answer['retention'])}, {short(answer['retention_bytes'])} bytes"
        facts.append(
            ("kept", kept if answer["replication"] < 1 else f"{kept}, {counted(answer['replication'], 'replica')}")
        )
    facts += [(printable(shared_name(one)), _shared(one)) for one in answer.get("shared", ())]
    if answer["trouble"]:
        facts.append(("trouble", printable(answer["trouble"])))
    return [*facts, ("worker", str(answer["worker"]))]
