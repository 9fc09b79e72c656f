# The Redis of a node that is stopped: the folder is locked, and the embedded server runs for as long as it is used.
#
# So the node cannot start meanwhile, and the server is the one that it would start, with its settings: what is written
# is on the disk when the server has ended.
from collections.abc import Callable
from typing import Final

import redis
import trio

from broker.config.schema import MEMORY, Config
from supervisor.folder import FolderError, NodeFolder
from supervisor.node_redis import NodeRedis
from supervisor.redis_address import explained, open_client
from supervisor.redis_server import RedisUnusable

IN_MEMORY: Final = (
    'The node {name} stores no sessions, as store.durability is "memory": give this command the settings that the node '
    "is started with (--config, --set)."
)

Use = Callable[["redis.Redis", bytes], None]


class NodeUnusable(Exception):
    """The node runs, or its folder or its Redis cannot be used. The text is one sentence for the user."""


class NoLog:
    """Events are of no interest: what goes wrong is an exception."""

    def info(self, event: str, **facts: object) -> None: ...
    def warning(self, event: str, **facts: object) -> None: ...
    def error(self, event: str, **facts: object) -> None: ...


def with_redis_of(config: Config, folder: NodeFolder, use: Use) -> None:
    """Call *use*, in another thread, with the Redis of the stopped node of *config* and the era of its data.

    NodeUnusable, and what *use* raises; redis.RedisError becomes NodeUnusable. KeyboardInterrupt: *use* is abandoned.
    """
    if config.store.durability == MEMORY:
        raise NodeUnusable(IN_MEMORY.format(name=folder.name))
    failures: list[Exception] = []
    try:
        folder.take()
        try:
            trio.run(_use, NodeRedis(config, folder, NoLog()), use, failures)
        finally:
            folder.release()
    except (FolderError, RedisUnusable) as error:
        raise NodeUnusable(str(error)) from None
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        raise KeyboardInterrupt from None
    for failure in failures:
        raise failure


async def _use(node: NodeRedis, use: Use, failures: list[Exception]) -> None:
    async with trio.open_nursery() as nursery:

        def failed(sentence: str) -> None:
            failures.append(NodeUnusable(sentence))
            nursery.cancel_scope.cancel()

        for child in node.children():
            nursery.start_soon(child.keep, failed)
            await child.ready.wait()
        await trio.to_thread.run_sync(_call, node, use, failures, abandon_on_cancel=True)
        for child in node.children():
            child.stop()


def _call(node: NodeRedis, use: Use, failures: list[Exception]) -> None:
    try:
        with explained(str(node.address)), open_client(node.address) as server:
            use(server, bytes.fromhex(node.address.era))
    except RedisUnusable as error:
        failures.append(NodeUnusable(str(error)))
    except Exception as error:  # raised again when the server has ended
        failures.append(error)
