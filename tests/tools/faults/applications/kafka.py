# A Kafka of one run, behind a proxy that harms its connections: clients are told the address of the proxy.
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.kafka_servers import HOST, KafkaServer, free_port
from tests.tools.faults.durable.proxy import Proxy

START: Final = 300.0  # seconds for a start, at the lowest priority


class ProxiedKafka:
    def __init__(self, folder: Path, wait: Callable[[], object]) -> None:
        """*wait* is called again and again while the server starts. KafkaError."""
        port = free_port()
        self._server: Any = KafkaServer(folder, advertised=(HOST, port))
        self._wait = wait
        self.proxy = Proxy((HOST, port), (HOST, self._server.port))
        try:
            self._server.start(wait, START)
        except BaseException:
            self.proxy.close()
            raise

    @property
    def address(self) -> str:
        """That of the proxy."""
        return str(self._server.address)

    @property
    def pid(self) -> int:
        return int(self._server.process.pid)

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        """Start it again."""
        self._server.start(self._wait, START)

    def go_on(self) -> None:
        """Let it work, and heal its connections; it is started if it has ended."""
        self.proxy.heal()
        if self._server.process.poll() is None:
            self._server.process.send_signal(signal.SIGCONT)
        else:
            self.start()

    def close(self) -> None:
        self.proxy.close()
        self._server.kill()
