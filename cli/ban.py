# Commands for bans: `weir ban add`, `list` and `remove`.
from typing import Annotated, Final

import typer

from cli.clients import visible
from cli.nodes import duration
from cli.options import AsJson, ConfigFile, Folder, Name, refuse
from cli.printing import console, print_json, table_of

LEAST: Final = 1.0  # seconds

app = typer.Typer(help="Keep clients out until a deadline.", no_args_is_help=True)

Client = Annotated[str, typer.Option("--client", metavar="CLIENT", help="Ban one client id.")]
User = Annotated[str, typer.Option("--user", metavar="USER", help="Ban a user, with all its clients.")]
Address = Annotated[
    str, typer.Option("--address", metavar="ADDRESS", help="Ban an address or a network: 192.0.2.1, 2001:db8::/48.")
]
Pattern = Annotated[
    str, typer.Option("--pattern", metavar="PATTERN", help="Ban all client ids like this, * for any text: 'bot-*'.")
]


@app.command("add")
def add(
    lasts: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Duration of the ban: 90s, 15m, 1h, 7d; at most 365d.")
    ],
    client: Client = "",
    user: User = "",
    address: Address = "",
    pattern: Pattern = "",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="For the log and `weir ban list`.")] = "",
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Ban a client id, a user, an address or a pattern on this node.

    A CONNECT of a banned client is refused (0x8A; 5 in MQTT 3), and its connections are closed at once (0x98). The ban
    replaces a former one of the same client id, user, address or pattern. It survives restarts of workers and node.
    """
    from cli.control_client import ControlClient, chosen_node

    kind, value = _what(client, user, address, pattern)
    seconds = _seconds(lasts)
    answer = ControlClient(chosen_node(name, folder, config)).request(
        "ban_add", kind=kind, value=value, seconds=seconds, reason=reason
    )
    if as_json:
        return print_json(answer)
    told = f"The {kind} {visible(answer['value'])} is banned for {duration(seconds)}."
    console().print(told, highlight=False, soft_wrap=True)


@app.command("list")
def list_bans(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the bans in force, the next to end first."""
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("ban_list")
    if as_json:
        return print_json(answer)
    screen = console()
    if not answer["bans"]:
        return screen.print("Nobody is banned.")
    table = table_of("kind", "banned", "ends in", "set by", "because", right=("ends in",))
    for one in answer["bans"]:
        ends = duration(one["left"])
        table.add_row(one["kind"], visible(one["value"]), ends, visible(one["by"]), visible(one["reason"]))
    screen.print(table)


@app.command("remove")
def remove(
    client: Client = "",
    user: User = "",
    address: Address = "",
    pattern: Pattern = "",
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove a ban before its end. Exit code 1 if there is no such ban."""
    from cli.control_client import ControlClient, chosen_node

    kind, value = _what(client, user, address, pattern)
    answer = ControlClient(chosen_node(name, folder, config)).request("ban_remove", kind=kind, value=value)
    if as_json:
        return print_json(answer)
    console().print(f"The {kind} {visible(value)} is not banned any more.", highlight=False, soft_wrap=True)


def _what(client: str, user: str, address: str, pattern: str) -> tuple[str, str]:
    """The kind and the value of a ban."""
    given = {"client": client, "user": user, "address": address, "pattern": pattern}
    named = [(kind, value) for kind, value in given.items() if value]
    if len(named) != 1:
        refuse("Name what is banned by one of --client, --user, --address and --pattern.")
    return named[0]


def _seconds(lasts: str) -> float:
    from broker.auth.bans import LONGEST
    from broker.config.values import Duration

    try:
        return Duration(LEAST, LONGEST).take(lasts)
    except ValueError as error:
        refuse(f'--for "{lasts}" is not valid: it must be {error}.')
