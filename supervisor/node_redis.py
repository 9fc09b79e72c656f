# The Redis of a node: a private server of its own, or the one that `redis.url` names.
#
# The first worker begins when it serves. Later the workers go on without it. What a name or a sentinel stands for may
# change, and workers look nothing up: it is looked up here, again and again, and they are told.
from collections.abc import Callable
from typing import Final

import trio

from broker.config.schema import Config
from broker.control.machine import memory_limit
from broker.log import Log
from broker.store.redis.address import RedisAddress
from supervisor.embedded_redis import EmbeddedRedis
from supervisor.folder import NodeFolder
from supervisor.redis_address import find_redis
from supervisor.redis_server import RedisUnusable, find_server

LOOK: Final = 2.0  # seconds: as long as the client of a lasting session waits
SHARE: Final = 4  # of the memory limit, for the data of a private server


class NodeRedis:
    def __init__(self, config: Config, folder: NodeFolder, log: Log) -> None:
        """RedisUnusable: there is none that can be used."""
        self.moved: Callable[[], None] = _nothing  # called when `address` is another one
        self._url = config.redis.url
        self._embedded: EmbeddedRedis | None = None
        if self._url:
            found = find_redis(self._url)
            self.address: RedisAddress = found.address
            for remark in found.remarks:
                log.warning("redis_log", address=str(found.address), text=remark)
            return
        memory = config.redis.memory or memory_limit() // SHARE
        self._embedded = EmbeddedRedis(folder.path / "redis", find_server(), memory, log)
        self.address = self._embedded.address

    def private(self) -> bool:
        """Nobody else uses it."""
        return self._embedded is not None

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `stop()` or a cancellation; started when workers can use it. RedisUnusable: they cannot."""
        if self._embedded is not None:
            await self._embedded.run(task_status)
            return
        task_status.started()
        while True:
            await trio.sleep(LOOK)
            try:
                found = await trio.to_thread.run_sync(find_redis, self._url, abandon_on_cancel=True)
            except RedisUnusable:
                continue  # the workers say so, and try on
            if found.address.parts() != self.address.parts():
                self.address = found.address
                self.moved()

    async def stop(self) -> None:
        """A private one writes what it has, and ends."""
        if self._embedded is not None:
            await self._embedded.stop()


def _nothing() -> None:
    pass
