# `weir why CLIENT`: why a client is throttled, was disconnected, or misses messages.
import typer

from cli.clients import ClientId, visible
from cli.options import AsJson, ConfigFile, Folder, Name
from cli.printing import console, print_json


def why(
    client: ClientId,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a client is throttled, was disconnected or misses messages. Exit code 1 if the client is unknown."""
    from broker.insight.explain import explain
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("why", client=client)
    if as_json:
        return print_json(answer)
    screen = console()
    for number, paragraph in enumerate(explain(answer)):
        if number:
            typer.echo()
        screen.print(visible(paragraph), highlight=False)
