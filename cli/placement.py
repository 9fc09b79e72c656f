# Commands about where clients are: drain a node, have it take clients again, spread the clients of a cluster.
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import NOT_SO, AsJson, ConfigFile, Folder, Name, refuse
from cli.printing import counted, print_json

if TYPE_CHECKING:
    from supervisor.folder import NodeFolder

LOOK: Final = 0.2  # seconds between two looks at a node that is drained

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node, as `weir nodes` shows it.")]


def drain(
    node: NodeName,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0.0,
            metavar="SECONDS",
            help="Wait so long for the last client to leave, and for sessions that are in memory alone. "
            "Exit code 1 if some are left then.",
        ),
    ] = 0.0,
    force: Annotated[
        bool, typer.Option("--force", help="Disconnect the clients even if no other node takes them.")
    ] = False,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Send the clients of a node to the others, and let no new ones in, until `weir undrain` or the end of the node.

    Clients of MQTT 5 get DISCONNECT 0x9C with a server reference, if nodes have node.reference; others are closed. They
    leave at a pace that follows the level of the other nodes. The node may be on another machine, if a node of its
    cluster runs here. Exit code 1 if there is no such node.
    """
    from cli.control_client import ControlClient

    asked = asked_node(node, folder, config)
    answer = ControlClient(asked).request("drain", node=node, force=force)
    if not as_json:
        typer.echo(f"The node {node} is {'' if answer['began'] else 'already '}being drained.")
    progress = _wait(asked, node, wait) if wait else ControlClient(asked).request("drain_progress", node=node)
    if as_json:
        print_json({**answer, **progress})
    elif not wait and progress["clients"]:
        typer.echo(f"{counted(progress['clients'], 'client')} {'is' if progress['clients'] == 1 else 'are'} left.")
    if wait and not drained(progress):
        refuse(f"After {wait:g} s {_left(progress)} of the node {node} are left, and go on leaving.", NOT_SO)
    if wait and not as_json:
        typer.echo(f"The node {node} has no client.")


def undrain(node: NodeName, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Have a node take clients again. Exit code 1 if there is no such node."""
    from cli.control_client import ControlClient

    answer = ControlClient(asked_node(node, folder, config)).request("undrain", node=node)
    if as_json:
        return print_json(answer)
    typer.echo(f"The node {node} {'takes clients again' if answer['ended'] else 'was not drained'}.")


def rebalance(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Have each node that has clearly more clients for each worker than others send the surplus away, as a drain does.

    It ends by itself. `weir nodes` shows how many clients the nodes of this machine have.
    """
    from cli.control_client import ControlClient, chosen_node

    node = chosen_node(name, folder, config)
    answer: dict[str, Any] = ControlClient(node).request("rebalance")
    if as_json:
        return print_json(answer)
    surplus = counted(answer["clients"], "client") if answer["clients"] else "no client"
    typer.echo(f"The node {answer['node']} sends {surplus} away. Asked to do so as well: {', '.join(answer['asked'])}.")


def drained(progress: dict[str, Any]) -> bool:
    """Whether no client is left, and no session that would end with the node."""
    return bool(progress["state"] == "drained")


def _left(progress: dict[str, Any]) -> str:
    if progress["clients"] is None:
        return "some clients"
    if progress["clients"]:
        return counted(progress["clients"], "client")
    if "sessions_in_memory" not in progress:  # of a node elsewhere, which reports its clients only
        return "some sessions in memory alone"
    return f"{counted(progress['sessions_in_memory'], 'session')} in memory alone"


def asked_node(name: str, folder: str | None, config: Any) -> "NodeFolder":
    """The node of this machine that is asked about the node *name*: that one if it runs here, else any other."""
    from cli.control_client import chosen_node, runs
    from supervisor.folder import folders

    chosen = chosen_node(None if folder else name, folder, config)
    if folder or runs(chosen):
        return chosen
    return next((one for one in folders() if runs(one)), chosen)


def _wait(asked: "NodeFolder", name: str, seconds: float) -> dict[str, Any]:
    """How far the drain is when no client is left, or after *seconds*."""
    import time

    from cli.control_client import ControlClient

    deadline = time.monotonic() + seconds
    while True:
        client = ControlClient(asked)
        progress: dict[str, Any] = client.request("drain_progress", node=name)
        client.close()
        if drained(progress) or time.monotonic() >= deadline:
            return progress
        if not progress["state"]:
            refuse(f"The node {name} takes clients again: somebody has used `weir undrain`.", NOT_SO)
        time.sleep(min(LOOK, max(0.0, deadline - time.monotonic())))
