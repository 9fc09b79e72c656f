# A Redis that is not the node's: the run starts it, and again when it was killed.
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from supervisor.redis_server import configuration, find_server
from supervisor.torn_file import cut_torn, torn_file

PATIENCE: Final = 10.0  # seconds until it answers


class Server:
    def __init__(self, folder: Path, durability: str, environment: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.socket = folder / "redis.sock"
        self._environment = {**os.environ, **environment}
        (folder / "redis.conf").write_text(configuration(folder, self.socket, 0, durability))
        self.start()

    def start(self) -> None:
        """AssertionError: it does not serve. `log` says why.

        A file that a cut of the power has torn is cut to whole transactions, as the supervisor does for its server.
        """
        begin = self.log.stat().st_size if self.log.exists() else 0
        self._execute()
        if self._serves():
            return
        said = self.log.read_bytes()[begin:].decode(errors="replace")
        torn = torn_file(said.splitlines(), self.folder)
        assert torn is not None, said[-3000:]
        assert cut_torn(torn, find_server()), said[-3000:]
        self._execute()
        assert self._serves(), self.log.read_text(errors="replace")[-3000:]

    def _execute(self) -> None:
        self.socket.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [find_server().path, self.folder / "redis.conf"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def _serves(self) -> bool:
        """Whether it has loaded its data; false: it has ended."""
        deadline = time.monotonic() + PATIENCE
        client = redis.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))
        while self.process.poll() is None:
            with contextlib.suppress(redis.ConnectionError), client:  # BusyLoadingError is one, too
                return bool(client.ping())
            assert time.monotonic() < deadline, "Redis does not serve"
            time.sleep(0.005)  # no event tells when another process serves
        return False

    @property
    def log(self) -> Path:
        return self.folder / "redis.log"

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(PATIENCE)
