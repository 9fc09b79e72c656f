# A Redis that is not the node's: the run starts it, and again when it was killed.
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from supervisor.redis_server import configuration, find_server

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
        """AssertionError: it does not serve. `log` says why."""
        self.socket.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [find_server().path, self.folder / "redis.conf"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        deadline = time.monotonic() + PATIENCE
        while not self.socket.exists():
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, "Redis does not listen"
            time.sleep(0.005)  # no event tells when another process listens

    @property
    def log(self) -> Path:
        return self.folder / "redis.log"

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(PATIENCE)
