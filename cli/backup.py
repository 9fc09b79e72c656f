# `weir backup` and `weir restore`: the durable state of a node in a file.
#
# The command itself reads and writes Redis, and no worker takes part: a running node tells where its Redis is, and the
# private server of a stopped node is started for the time of the command.
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.clients import printable
from cli.confirm import Yes, confirm
from cli.nodes import short
from cli.options import NOT_SO, AsJson, Assignments, ConfigFile, Folder, Name, load_settings, refuse
from cli.printing import counted, print_json

if TYPE_CHECKING:
    import redis

    from broker.config.schema import Config
    from supervisor.backup.backup_file import Counts
    from supervisor.folder import NodeFolder

PATIENCE: Final = 60.0  # seconds for replicas to have what was restored
NAMED: Final = 10  # damaged sessions that are printed; --json has all
FILE = typer.Argument(metavar="FILE", help="The backup.")
RAN = (
    "The node ran meanwhile: each session is as it was at one moment, and two sessions may be of two moments. "
    "What was acknowledged meanwhile may be missing."
)


def backup(
    file: Annotated[Path, FILE],
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Copy the durable state of a node into a new file: sessions, queues, QoS 2 state, wills and retained messages.

    The node may run. Of a stopped node, a backup is of one moment; it needs the settings that the node is started with.
    The file contains what clients have sent, and only its owner may read it. The logs of APPLICATION clients are in it
    if Redis has them; Kafka keeps its own topics, and sessions go on in them where they were.
    """
    from cli.control_client import ControlClient
    from supervisor.backup.stopped_node import with_redis_of

    settings, node = _chosen(name, folder, config, assignments)
    if file.exists():  # before a server is started
        refuse(f"The file {file} exists already.")
    done: dict[str, Any] = {}
    with _refusing():
        if _runs(node):
            answer = ControlClient(node).request("backup")
            _back_up_running(file, answer, done)
        elif not (node.path / "node").exists() and not settings.redis.url:
            refuse(f"There is no node {node.name} in {node.path}.", NOT_SO)
        else:

            def export(server: "redis.Redis", era: bytes) -> None:
                done.update(_export(server, era, settings.redis.prefix, file, node.name, running=False))

            with_redis_of(settings, node, export)
    if as_json:
        return print_json(done)
    typer.echo(f"Backed up {_told(done)} to {file} ({short(done['bytes'])}B).")
    if done["running"]:
        typer.echo(RAN)
    if done["logs"]:
        typer.echo(f"It has {counted(done['logs'], 'log')} of APPLICATION clients.")
    if done["logs_elsewhere"]:
        typer.echo(f"The logs of {counted(done['logs_elsewhere'], 'session')} are in Kafka, and not in it.")
    if done["unreadable"]:
        named = ", ".join(printable(one) for one in done["unreadable"][:NAMED])
        more = ", ..." if len(done["unreadable"]) > NAMED else ""
        typer.echo(f"What is damaged could not be read and is not in it: {named}{more}", err=True)


def restore(
    file: Annotated[Path, FILE],
    yes: Yes = False,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Write a backup into a stopped node without sessions and retained messages; its next start serves them.

    The node may be new, and have another name and another number of workers. It needs the settings that the node is
    started with; with `store.durability = "replicated"` the command waits for store.replicas replicas, for a minute at
    most. Exit code 2 if the backup is damaged or the node has data: nothing was changed.
    """
    from broker.config.schema import REPLICATED
    from broker.store.redis.keys import Keys
    from supervisor.backup.backup_file import BackupReader
    from supervisor.backup.replicas import replicas_with_all
    from supervisor.backup.restore import Restore
    from supervisor.backup.stopped_node import with_redis_of

    settings, node = _chosen(name, folder, config, assignments)
    needed = settings.store.replicas
    if _runs(node):
        refuse(f"The node {node.name} runs, and a restore needs a stopped one: `weir stop {node.options}` stops it.")
    done: dict[str, Any] = {}
    with _refusing(), BackupReader(file) as found:
        counts = found.check()
        taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.head.taken_at))
        told = _told(_counts(counts))
        confirm(f"Restore {told} of node {found.head.node}, backed up {taken}, to node {node.name}?", yes)

        def write(server: "redis.Redis", era: bytes) -> None:
            restored = Restore(server, settings.redis.prefix, settings.node.name, found).run()
            done.update(_counts(restored), node=settings.node.name)
            if settings.store.durability == REPLICATED:
                mark = Keys(settings.redis.prefix).mark(b"restore")
                done["replicas"] = replicas_with_all(server, mark, needed, PATIENCE)

        with_redis_of(settings, node, write)
    if as_json:
        return print_json(done)
    typer.echo(f"Restored {_told(done)}. `weir start` serves them.")
    if done.get("replicas", needed) < needed:
        lacking = f"{done['replicas']} of {counted(needed, 'replica')} (store.replicas) have it so far"
        typer.echo(f"{lacking}: what is lacking there would be lost with the machine of Redis.", err=True)


@contextmanager
def _refusing() -> Iterator[None]:
    """End the command with the sentence of whatever makes it impossible."""
    from supervisor.backup.backup_file import BackupUnusable
    from supervisor.backup.restore import RestoreRefused
    from supervisor.backup.stopped_node import NodeUnusable
    from supervisor.redis_server import RedisUnusable

    try:
        yield
    except (BackupUnusable, NodeUnusable, RedisUnusable, RestoreRefused) as error:
        refuse(str(error))


def _chosen(
    name: str | None, folder: str | None, config: Path | None, assignments: list[str] | None
) -> "tuple[Config, NodeFolder]":
    """The settings that a start with these options would have, and the folder of the node."""
    from broker.config.sources import Given
    from cli.control_client import owner
    from supervisor.folder import NodeFolder

    options = []
    if folder is not None:
        options.append(Given("node.folder", folder, "--folder"))
    if name is not None:
        options.append(Given("node.name", name, "--name"))
    settings = load_settings(config, assignments, options).config
    node = NodeFolder(settings.node.name, settings.node.folder)
    of_folder = owner(node)
    if name is None and folder is not None and of_folder not in ("", node.name):
        return _chosen(of_folder, folder, config, assignments)
    return settings, node


def _runs(node: "NodeFolder") -> bool:
    try:
        return node.running() is not None
    except PermissionError:
        refuse(f"No permission to use the node {node.name}: only the owner of {node.path} and root have it.")


def _back_up_running(file: Path, answer: dict[str, Any], done: dict[str, Any]) -> None:
    from broker.store.redis.address import from_parts
    from supervisor.redis_address import explained, open_client

    address = from_parts(answer["redis"]["address"])
    with explained(str(address)), open_client(address) as server:
        era = bytes.fromhex(address.era)
        done.update(_export(server, era, answer["redis"]["prefix"], file, answer["node"], running=True))


def _export(server: "redis.Redis", era: bytes, prefix: str, file: Path, node: str, *, running: bool) -> dict[str, Any]:
    from broker.store.redis.keys import DURABLE_FORMAT, Keys
    from broker.version import VERSION
    from supervisor.backup.backup_file import BackupWriter, Head
    from supervisor.backup.export import Export
    from supervisor.backup.logs import LogExport

    with BackupWriter(file, Head(node, VERSION, DURABLE_FORMAT, time.time(), running)) as writer:
        logs = LogExport(server, prefix, writer)
        export = Export(server, Keys(prefix), writer, era, logs)
        export.run()
        counts, size = writer.finish()
    unreadable = [one.decode(errors="backslashreplace") for one in export.unreadable]
    elsewhere = 0 if logs.topics else export.services
    of_logs = {"logs": logs.topics, "logs_elsewhere": elsewhere}
    return {**_counts(counts), **of_logs, "bytes": size, "running": running, "unreadable": unreadable}


def _counts(counts: "Counts") -> dict[str, Any]:
    return {"sessions": counts.sessions, "packs": counts.packs, "retained": counts.retained}


def _told(done: dict[str, Any]) -> str:
    return f"{counted(done['sessions'], 'session')} and {counted(done['retained'], 'retained message')}"
