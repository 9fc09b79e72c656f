# The embedded Redis: a private server of the node, as a child of the supervisor.
#
# The first start of the server is part of the start of the node: it ends when the server answers, however long the
# server loads its data, or it ends the start of the node with one sentence. Afterwards the workers continue without
# Redis (broker/store), so a server that dies or hangs is started again without limit, with growing pauses.
from pathlib import Path

from broker.log import Log
from broker.store.redis.address import RedisAddress
from supervisor.child import Child
from supervisor.redis_process import RedisProcess
from supervisor.redis_server import RedisServer, configuration, explain, prepare
from supervisor.restarts import RestartPolicy


class EmbeddedRedis(Child[RedisProcess]):
    def __init__(self, folder: Path, server: RedisServer, memory: int, log: Log) -> None:
        """*folder*: for this server alone. *memory*: the most that its data may take, bytes; 0: no limit.

        RedisUnusable: the folder cannot be used.
        """
        super().__init__(RestartPolicy())
        self.socket = folder / "redis.sock"
        self._folder = folder
        self._server = server
        self._log = log
        self._configured = folder / "redis.conf"
        prepare(folder, self.socket, self._configured, configuration(folder, self.socket, memory), server)

    @property
    def address(self) -> RedisAddress:
        return RedisAddress(path=str(self.socket))

    # A Child.

    def make(self) -> RedisProcess:
        return RedisProcess(self._server.path, self._configured, self.socket, self._log, self._became_ready)

    def start(self, process: RedisProcess) -> None:
        process.start()

    def died(self, process: RedisProcess) -> None:
        if not self.is_first_start():  # otherwise the end of the node says so
            self._log.error("embedded_redis_died", code=process.code, why=self._explain(process))

    def failure(self, process: RedisProcess, why: str) -> str:
        return self._explain(process)

    def _explain(self, process: RedisProcess) -> str:
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
