# Several nodes that share a Redis, behind a load balancer: for a client they are one broker.
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.redis_servers import SERVERS, RunningRedis
from tests.system import processes
from tests.system.processes import PATIENCE, BrokerProcess, free_port

TREE: Final = Path(__file__).resolve().parents[2]

StartNode = Callable[[int, Path, dict[str, object]], BrokerProcess]


class ClusterProcess(BrokerProcess):
    """Nodes that clients reach by chance on the ports of *addresses*. What is asked of a node is asked of the first."""

    def __init__(
        self,
        folder: Path,
        count: int,
        ports: Sequence[int],
        start: StartNode,
        listeners: Callable[[Sequence[int]], Mapping[str, object]],
    ) -> None:
        """*ports*: that of TCP first. *start* starts a node; *listeners*: settings for ports in place of *ports*."""
        self.port = ports[0]
        self.redis = RunningRedis(SERVERS[-1], folder / "redis")
        self.nodes: list[BrokerProcess] = []
        behind: list[list[int]] = []
        try:
            for _ in range(count):
                own = [free_port() for _ in ports]
                settings = {**listeners(own), "redis.url": f"unix://{self.redis.socket}"}
                self.nodes.append(start(own[0], folder, settings))
                behind.append(own)
            routes = [f"{port}:{','.join(str(own[at]) for own in behind)}" for at, port in enumerate(ports)]
            self._balancer = subprocess.Popen(
                [sys.executable, "-m", "tests.system.balancer", *routes],
                stdout=subprocess.PIPE,
                text=True,
                cwd=TREE,
                env=processes.weir_environment(TREE),
            )
            assert self._balancer.stdout is not None
            with self._balancer.stdout as said:
                assert "listening\n" == said.readline()
        except BaseException:
            for node in self.nodes:
                node.process.kill()
                node.process.wait()
            self.redis.end()
            raise
        self.process = self.nodes[0].process
        self.control = self.nodes[0].control
        self.log = self.nodes[0].log

    def log_text(self) -> str:
        return "".join(node.log_text() for node in self.nodes)

    def terminate(self) -> int:
        """End all nodes, one after the other; return the greatest of their exit codes."""
        self._balancer.kill()
        self._balancer.wait(PATIENCE)
        try:
            return max(node.terminate() for node in self.nodes)
        finally:
            self.redis.end()
