# The Redis of a node: its embedded server, or the server that `redis.url` names.
#
# Workers start when Redis can be used; afterwards they continue without it. A host name or a sentinel in the URL may
# stand for another server after a while, and `redis.password_file` may have another password. Workers look up no names:
# the supervisor does, again and again, and sends them the new address. If only the password is another one, their
# connections stay, and the next ones are made with it.
#
# The embedded server gives each class of `store.durability`; a server of the user has to, by its settings. One that
# does not is refused at the start. One that is found later, after a failover, or whose settings change, cannot be
# refused any more, as the clients are there: it is logged as an error.
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import redis
import trio

from broker.config.budget import redis_memory
from broker.config.schema import MEMORY, REPLICATED, Config
from broker.config.sources import without_password
from broker.control.machine import memory_limit
from broker.log import Log
from broker.store.redis.address import RedisAddress
from broker.store.redis.keys import Keys
from supervisor.child import Child
from supervisor.cluster_key import cluster_key
from supervisor.durable_format import claim_format
from supervisor.embedded_redis import EmbeddedRedis
from supervisor.folder import NodeFolder
from supervisor.node_lease import Server
from supervisor.redis_address import SENTINELS, FoundRedis, Info, find_configured, open_client
from supervisor.redis_durability import LOADS_TORN, Settings, described, durability_of, read_settings, shortfall
from supervisor.redis_server import RedisUnusable, find_server

LOOKUP: Final = 2.0  # seconds between two; the client of a persistent session waits as long for Redis
UNLIMITED: Final = (
    "maxmemory is 0, so nobody can tell how full Redis is before its machine has no memory left: set maxmemory, and "
    "publishers are slowed down in time"
)
TORN_BEFORE: Final = (9, 1, 2)  # of Valkey; all versions of Redis that are known
TORN: Final = (
    "aof-load-truncated is yes: this version loads a file that a loss of power has cut off within a transaction, and "
    "its next start drops what was written since: set it to no, and cut such a file with redis-check-aof --fix"
)
FAILOVER: Final = (
    "a sentinel may name a replica as the next primary, which lacks the last writes that the former one has answered: "
    "store.durability is kept as long as the primary is the same"
)
FAILOVER_REPLICATED: Final = (
    "a sentinel may name any replica as the next primary, and only store.replicas of them have each write: what was "
    "acknowledged survives a failover for certain if store.replicas is the number of all replicas"
)


class NodeRedis:
    def __init__(self, config: Config, folder: NodeFolder, log: Log) -> None:
        """RedisUnusable."""
        self._url = config.redis.url
        self._config = config.redis
        self._told = ""  # why the last look-up failed, as it is logged
        self._durability = config.store.durability
        self._replicas = config.store.replicas
        self._format = Keys(config.redis.prefix).format
        self._settings: Settings = {}  # of the server that was examined last
        self._unsuitable = ""  # why that server does not keep the promise of the node
        self._log = log
        self.cluster_key = cluster_key(config.redis.key_file, self._url, folder.path)
        self._embedded: EmbeddedRedis | None = None
        if self._url:
            self.address: RedisAddress = self._find_first()
            return
        memory = redis_memory(config, memory_limit(config.node.memory))
        self._embedded = EmbeddedRedis(
            folder.path / "redis", find_server(), memory, log, self._durability, config.redis.prefix
        )
        self.address = self._embedded.address

    def private(self) -> bool:
        """Whether no other node can use it."""
        return self._embedded is not None

    def shown(self) -> str:
        """The server, for people."""
        return without_password(self._url)

    def opener(self) -> Server:
        """What opens a client of the server, wherever it is by then."""
        return lambda: open_client(self.address)

    def agreed(self) -> Mapping[str, str]:
        """What all nodes that share the server have to agree on."""
        digest = hashlib.sha256(b"weir cluster key" + self.cluster_key).hexdigest()[:16] if self.cluster_key else ""
        return {"store.durability": self._durability, "redis.key_file": digest}

    def children(self) -> Sequence[Child[Any]]:
        """The processes that the supervisor has to keep for it."""
        return [] if self._embedded is None else [self._embedded]

    async def watch(self, moved: Callable[[], None]) -> None:
        """Call *moved* each time that the URL stands for another address."""
        while self._url:
            await trio.sleep(LOOKUP)
            try:
                found = await trio.to_thread.run_sync(self._find_again, abandon_on_cancel=True)
            except RedisUnusable as error:
                self._note_failure(str(error))
                continue
            self._told = ""
            has_moved = found.address.parts() != self.address.parts()
            self._note(found, has_moved)
            if has_moved:
                self.address = found.address
                moved()

    def _find_first(self) -> RedisAddress:
        """The address of the server at the start. RedisUnusable: the server gives less than the node promises, too."""
        found = find_configured(self._config, self._examine)
        if found.unsuitable:
            raise RedisUnusable(found.unsuitable)
        address = str(found.address)
        gives = REPLICATED if self._durability == REPLICATED else durability_of(self._settings)
        told = described(self._settings)
        self._log.info("redis_durability", address=address, configured=self._durability, gives=gives, settings=told)
        for remark in found.remarks:
            self._log.warning("redis_log", address=address, text=remark)
        if self._durability != MEMORY and self._settings.get("maxmemory") == "0":
            self._log.warning("redis_log", address=address, text=UNLIMITED)
        if self._durability != MEMORY and self._settings.get(LOADS_TORN) == "yes" and found.version < TORN_BEFORE:
            self._log.warning("redis_log", address=address, text=TORN)
        if self._durability != MEMORY and self._url.partition(":")[0] in SENTINELS:
            text = FAILOVER_REPLICATED if self._durability == REPLICATED else FAILOVER
            self._log.warning("redis_log", address=address, text=text)
        if not self.cluster_key:
            self._log.warning("redis_not_sealed", setting="redis.key_file")
        return found.address

    def _find_again(self) -> FoundRedis:
        """RedisUnusable."""
        if self._durability == MEMORY:
            return find_configured(self._config)
        return find_configured(self._config, self._examine)

    def _examine(self, server: "redis.Redis", told: Info) -> str:
        """One sentence on why *server* does not keep what the node promises; "": it does."""
        name = without_password(self._url)
        self._settings = read_settings(server, told)
        if self._durability == REPLICATED:
            server.wait(0, 1)  # or its user may not do it, which is told at the start
        wrong = shortfall(self._settings, self._durability, name, self._replicas)
        if wrong or self._durability == MEMORY:
            return wrong
        return claim_format(server, self._format, name)

    def _note_failure(self, why: str) -> None:
        """Log that the server was not found or does not let the node in, once for each reason."""
        if why != self._told:
            self._told = why
            self._log.warning("redis_not_found", why=why)

    def _note(self, found: FoundRedis, has_moved: bool) -> None:
        """Log if the server keeps the promise of the node no longer, or again."""
        if found.unsuitable and (has_moved or found.unsuitable != self._unsuitable):
            self._log.error("redis_durability_lost", address=str(found.address), why=found.unsuitable)
        elif self._unsuitable and not found.unsuitable:
            self._log.info("redis_durability_restored", address=str(found.address))
        self._unsuitable = found.unsuitable
