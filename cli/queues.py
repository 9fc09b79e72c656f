# Commands for the queue of a session: `weir queue show`, `purge` and `export`.
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from cli.clients import ClientId, visible
from cli.confirm import Yes, confirm
from cli.nodes import duration, short
from cli.options import NOT_SO, AsJson, ConfigFile, Folder, Name, refuse
from cli.printing import console, counted, print_facts, print_json, table_of

LONG: Final = 600.0  # seconds: a queue of gigabytes is worked on page by page

app = typer.Typer(help="Look at what waits for a client, copy it, or remove it.", no_args_is_help=True)


@app.command()
def show(
    client: ClientId,
    first: Annotated[int, typer.Option(min=0, max=100, metavar="N", help="Messages to show, the oldest first.")] = 10,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show how much waits for a client, by topic, and the first messages. Exit code 1 if it has no session.

    Nothing is taken out of the queue. Of a long queue the first 10000 messages or 16 MiB are counted by topic.
    """
    from cli.control_client import ControlClient, chosen_node

    answer = ControlClient(chosen_node(name, folder, config)).request("queue", client=client, first=first)
    if as_json:
        return print_json(answer)
    screen = console()
    print_facts(screen, _facts(answer))
    if answer["topics"]:
        topics = table_of("topic", "messages", "bytes", right=("messages", "bytes"))
        for one in answer["topics"]:
            topics.add_row(visible(one["topic"]), str(one["messages"]), short(one["bytes"]))
        screen.print(topics)
        screen.print(_counted_topics(answer), highlight=False)
    if answer["messages"]:
        messages = table_of("first messages", "QoS", "bytes", "age", "expires in", "", right=("QoS", "bytes"))
        for one in answer["messages"]:
            flags = [("retained", one["retain"]), ("sent before", one["sent"])]
            messages.add_row(
                visible(one["topic"]),
                str(one["qos"]),
                str(one["size"]),
                _time(one["age"], ""),
                _time(one["ends_in"], "never"),
                ", ".join(words for words, is_set in flags if is_set),
            )
        screen.print(messages)


@app.command()
def purge(
    client: ClientId,
    topic: Annotated[
        str, typer.Option("--topic", metavar="FILTER", help="Only messages whose topics match: 'sensors/#'.")
    ] = "",
    yes: Yes = False,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove the messages that wait for a client, but for those in flight. Exit code 1 if it has no session.

    They count as dropped, with the reason `purged`. Messages that arrive meanwhile stay.
    """
    from cli.control_client import ControlClient, chosen_node

    node = chosen_node(name, folder, config)
    which = f"that match {topic!r}" if topic else "that wait"
    confirm(f"Remove all messages {which} for client {client!r}?", yes)
    answer = ControlClient(node, LONG).request("queue_purge", client=client, filter=topic)
    if as_json:
        return print_json(answer)
    removed = f"{counted(answer['messages'], 'message')}, {counted(answer['bytes'], 'byte')}"
    console().print(f"Removed {removed}.", highlight=False)


@app.command()
def export(
    client: ClientId,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A new file. Default: standard output.")] = None,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
) -> None:
    """Write the messages that wait for a client as JSON lines, the oldest first. Nothing is taken out of the queue.

    Each line has topic, payload (base64), qos, retain, properties, and in seconds expires_in and age. Exit code 1 if
    the client has no session, or if a message has more than 8 MiB and was written without its payload.
    """
    from cli.control_client import RequestFailed, chosen_node
    from cli.queue_export import exported_pages, lines

    pages = exported_pages(chosen_node(name, folder, config), client)
    written = cut = 0
    with ExitStack() as stack:
        out: BinaryIO | None = None if file is not None else sys.stdout.buffer
        while True:
            try:
                messages = next(pages, None)
            except RequestFailed as error:
                before = f" Messages that were written before: {written}." if written else ""
                refuse(f"{error}{before}", error.code)
            if messages is None:
                break
            if out is None:
                assert file is not None
                out = stack.enter_context(_new_file(file))
            cut += len([message for message in messages if message["payload"] is None])
            _write(out, file, lines(messages))
            written += len(messages)
        assert out is not None  # there is at least one page
        out.flush()
    if file is not None:
        typer.echo(f"Wrote {counted(written, 'message')}.", err=True)
    if cut:
        refuse(f"{counted(cut, 'message')} with more than 8 MiB: written without payload.", NOT_SO)


def _new_file(file: Path) -> BinaryIO:
    """*file*, which only its owner may read."""
    try:
        return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except OSError as error:
        refuse(f"The file {file} cannot be made: {error.strerror}.")


def _write(out: BinaryIO, file: Path | None, data: bytes) -> None:
    try:
        out.write(data)
    except BrokenPipeError:
        raise
    except OSError as error:
        refuse(f"{file or 'The output'} cannot be written: {error.strerror}.")


def _facts(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("client", visible(answer["client"])),
        ("waiting", f"{counted(answer['waiting'], 'message')}, {counted(answer['waiting_bytes'], 'byte')}"),
        ("in flight", counted(answer["inflight"], "message")),
        ("oldest", "unknown" if answer["oldest"] is None else f"{duration(answer['oldest'])} ago"),
        ("stored", "in Redis" if answer["durable"] else "in the memory of its worker"),
        ("worker", str(answer["worker"])),
    ]


def _counted_topics(answer: dict[str, Any]) -> str:
    which = "all that wait" if answer["complete"] else f"the first {answer['examined']}"
    inaccuracy = answer["inaccuracy"]
    most = f"; a count may be too high by {inaccuracy}, as there are many topics" if inaccuracy else ""
    return f"These topics have the most messages of {which}{most}."


def _time(seconds: float | None, unknown: str) -> str:
    return unknown if seconds is None else duration(seconds)
