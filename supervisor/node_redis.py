# The Redis of a node: its embedded server, or the server that `redis.url` names.
#
# Workers start when Redis can be used; afterwards they continue without it. A host name or a sentinel in the URL may
# stand for another server after a while. Workers look up no names: the supervisor does, again and again, and sends them
# the new address.
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from broker.config.budget import redis_memory
from broker.config.schema import Config
from broker.control.machine import memory_limit
from broker.log import Log
from broker.store.redis.address import RedisAddress
from supervisor.child import Child
from supervisor.cluster_key import cluster_key
from supervisor.embedded_redis import EmbeddedRedis
from supervisor.folder import NodeFolder
from supervisor.redis_address import find_redis
from supervisor.redis_server import RedisUnusable, find_server

LOOKUP: Final = 2.0  # seconds between two; the client of a persistent session waits as long for Redis


class NodeRedis:
    def __init__(self, config: Config, folder: NodeFolder, log: Log) -> None:
        """RedisUnusable."""
        self._url = config.redis.url
        self._ca = config.redis.ca
        self.cluster_key = cluster_key(config.redis.key_file, self._url, folder.path)
        self._embedded: EmbeddedRedis | None = None
        if self._url:
            found = find_redis(self._url, self._ca)
            self.address: RedisAddress = found.address
            for remark in found.remarks:
                log.warning("redis_log", address=str(found.address), text=remark)
            if not self.cluster_key:
                log.warning("redis_not_sealed", setting="redis.key_file")
            return
        memory = redis_memory(config, memory_limit(config.node.memory))
        self._embedded = EmbeddedRedis(folder.path / "redis", find_server(), memory, log)
        self.address = self._embedded.address

    def private(self) -> bool:
        """Whether no other node can use it."""
        return self._embedded is not None

    def children(self) -> Sequence[Child[Any]]:
        """The processes that the supervisor has to keep for it."""
        return [] if self._embedded is None else [self._embedded]

    async def watch(self, moved: Callable[[], None]) -> None:
        """Call *moved* each time that the URL stands for another address."""
        while self._url:
            await trio.sleep(LOOKUP)
            try:
                found = await trio.to_thread.run_sync(find_redis, self._url, self._ca, abandon_on_cancel=True)
            except RedisUnusable:
                continue  # the workers log that they cannot reach it
            if found.address.parts() != self.address.parts():
                self.address = found.address
                moved()
