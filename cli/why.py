# `weir why CLIENT`: why a client is slow, gone, or gets nothing.
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
    """Say why a client is slow, gone or gets nothing, and what to change. Exit code 1 if nothing is known of it."""
    from broker.insight.explain import explain
    from cli.asking import Answers, chosen

    told = Answers(chosen(name, folder, config)).ask("why", client=client)
    if as_json:
        return print_json(told)
    screen = console()
    for number, paragraph in enumerate(explain(told)):
        if number:
            typer.echo()
        screen.print(visible(paragraph), highlight=False)
