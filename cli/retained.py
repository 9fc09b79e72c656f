# Commands for retained messages: `weir retained list`, `show` and `clear`.
import base64
import sys
from typing import Annotated, Any, Final

import typer

from cli.clients import printable, visible
from cli.confirm import Yes, confirm
from cli.nodes import duration, short
from cli.options import AsJson, ConfigFile, Folder, Name
from cli.printing import console, counted, list_of, print_facts, print_json

LONG: Final = 600.0  # seconds: messages are cleared page by page
SHOWN: Final = 4096  # bytes of a payload in a table

app = typer.Typer(help="List, show and clear retained messages.", no_args_is_help=True)


@app.command("list")
def list_retained(
    filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Only topics that match, such as 'sensors/#'. '$SYS/#': Weir's.")
    ] = "#",
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Maximum number of messages.")] = 1000,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List retained messages. A narrow terminal gets fewer columns."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("retained", filter=filter, limit=limit)
    if as_json:
        return print_json(answer)
    screen = console()
    columns = ("topic", "QoS", "bytes", "age", "expires in", "set by")
    rows = [_row(one) for one in answer["messages"]]
    screen.print(list_of(columns, rows, screen, right=("QoS", "bytes"), spare=("set by", "QoS")))
    more = ", and there are more: --limit" if answer["more"] else ""
    screen.print(f"{counted(len(answer['messages']), 'message')}{more}")


@app.command()
def show(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write the payload as it is, and nothing else.")] = False,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the retained message of a topic. Exit code 1 if there is none."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("retained_show", topic=topic)
    payload = base64.b64decode(answer["payload"])
    if raw:
        sys.stdout.buffer.write(payload)
        sys.stdout.buffer.flush()
        return
    if as_json:
        return print_json(answer)
    facts = [
        ("topic", visible(answer["topic"])),
        ("QoS", str(answer["qos"])),
        ("bytes", str(answer["size"])),
        ("age", _age(answer["age"])),
        ("expires in", _expiry(answer["expires_in"])),
        ("set by", visible(answer["client"])),
        ("payload", visible(payload[:SHOWN].decode(errors="backslashreplace"))),
    ]
    print_facts(console(), facts)
    if len(payload) > SHOWN:
        typer.echo(f"The first {SHOWN} of {len(payload)} bytes; --raw writes all.")


@app.command()
def clear(
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="Clear what is retained for topics that match.")],
    yes: Yes = False,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Clear retained messages, each as if a client had published an empty retained message to its topic."""
    from cli.control_client import ControlClient, chosen_node

    node = chosen_node(name, folder, config)
    confirm(f"Clear all retained messages that match {filter!r}?", yes)
    answer = ControlClient(node, LONG).request("retained_clear", filter=filter)
    if as_json:
        return print_json(answer)
    console().print(f"Cleared {counted(answer['messages'], 'message')}.", highlight=False)


def _row(one: dict[str, Any]) -> list[str]:
    times = _age(one["age"]), _expiry(one["expires_in"])
    return [printable(one["topic"]), str(one["qos"]), short(one["size"]), *times, printable(one["client"])]


def _age(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _expiry(seconds: float | None) -> str:
    return "never" if seconds is None else duration(seconds)
