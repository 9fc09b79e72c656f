# The embedded Redis: a private server of the node, as a child of the supervisor.
#
# The first start of the server is part of the start of the node: it ends when the server answers, however long the
# server loads its data, or it ends the start of the node with one sentence. Afterwards the workers continue without
# Redis (broker/store), so a server that dies or hangs is started again without limit, with growing pauses.
#
# The server keeps what `store.durability` promises: with "power" it syncs before each answer, otherwise aof_sync.py
# syncs each second. An append-only file that a loss of power has cut off is cut to whole transactions (torn_file.py),
# and the server is started again. Data of a newer format than this build knows ends the start, and stays as it is.
from collections.abc import Callable
from pathlib import Path

import trio

from broker.config.schema import MEMORY, POWER, PROCESS
from broker.log import Log
from broker.store.redis.address import RedisAddress
from broker.store.redis.keys import Keys
from supervisor.aof_sync import AppendOnlySync
from supervisor.child import Child
from supervisor.durable_format import claim_format
from supervisor.redis_address import explained, open_client
from supervisor.redis_process import RedisProcess
from supervisor.redis_server import RedisServer, RedisUnusable, configuration, explain, prepare
from supervisor.restarts import RestartPolicy
from supervisor.store_era import StoreEra
from supervisor.torn_file import cut_torn, torn_file


class EmbeddedRedis(Child[RedisProcess]):
    def __init__(
        self, folder: Path, server: RedisServer, memory: int, log: Log, durability: str = MEMORY, prefix: str = "weir"
    ) -> None:
        """*folder*: for this server alone. *memory*: the most that its data may take, bytes; 0: no limit.

        *durability* and *prefix* (of the keys): as in the settings. RedisUnusable: the folder cannot be used.
        """
        super().__init__(RestartPolicy())
        self.socket = folder / "redis.sock"
        self._folder = folder
        self._server = server
        self._log = log
        self._configured = folder / "redis.conf"
        self._durability = durability
        self._format = Keys(prefix).format
        text = configuration(folder, self.socket, memory, durability)
        prepare(folder, self.socket, self._configured, text, server)
        try:
            self._era = StoreEra(folder, durability == PROCESS)
        except OSError as error:
            raise RedisUnusable(f"Cannot write in the folder {folder}: {error.strerror}.") from None

    @property
    def address(self) -> RedisAddress:
        return RedisAddress(path=str(self.socket), era=self._era.name)

    # A Child.

    async def keep(self, failed: Callable[[str], None]) -> None:
        async with trio.open_nursery() as beside:
            if self._durability != POWER:
                beside.start_soon(AppendOnlySync(self._folder, self._log).run)
            await super().keep(failed)
            beside.cancel_scope.cancel()

    def make(self) -> RedisProcess:
        return RedisProcess(
            self._server.path, self._configured, self.socket, self._log, self._examine, self._became_ready
        )

    def start(self, process: RedisProcess) -> None:
        process.start()

    def died(self, process: RedisProcess) -> None:
        if not self.is_first_start():  # otherwise the end of the node says so
            self._log.error("embedded_redis_died", code=process.code, why=self._explain(process))

    async def mended(self, process: RedisProcess) -> bool:
        file = torn_file(process.lines, self._folder)
        if file is None:
            return False
        try:
            cut = await trio.to_thread.run_sync(cut_torn, file, self._server, abandon_on_cancel=True)
        except OSError as error:
            process.lines.append(f"{error.strerror}: {file}")
            return False
        if cut:
            self._log.warning("embedded_redis_file_cut", file=str(file), bytes=cut)
        return cut > 0

    def stopped(self, process: RedisProcess) -> None:
        self._era.end()  # at its end it syncs its file

    def failure(self, process: RedisProcess, why: str) -> str:
        return self._explain(process)

    async def _examine(self) -> str:
        """One sentence on why the data of the server that has started cannot be used; "": it can."""
        if self.ready.is_set() or self._durability == MEMORY:  # the data is that of the first start
            return ""
        return await trio.to_thread.run_sync(self._claim_format, abandon_on_cancel=True)

    def _claim_format(self) -> str:
        name = f"the embedded Redis ({self._folder})"
        try:
            with explained(name), open_client(self.address) as server:
                return claim_format(server, self._format, name)
        except RedisUnusable as error:
            return str(error)

    def _explain(self, process: RedisProcess) -> str:
        if process.refused:
            return process.refused
        if process.start_error:
            return f"The embedded Redis, {self._server}, cannot be started: {process.start_error}."
        if process.killed_because:
            return f"The embedded Redis, {self._server}, was killed, as {process.killed_because}."
        return explain(process.lines, self._folder, self._server)

    def _became_ready(self) -> None:
        assert self.process is not None
        self.ready.set()
        loading = round((self.process.ready_at or 0.0) - self.process.started_at, 3)
        self._log.info("embedded_redis_started", server=str(self._server), pid=self.process.pid, loading_s=loading)
