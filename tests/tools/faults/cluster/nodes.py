# One node of a cluster under faults, and its way to Redis: a proxy of its own, so that it can be cut off alone.
#
# It is started in a thread, as it takes seconds, in which the clients of the others go on and faults happen.
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.system.processes import free_port
from tests.tools.faults.durable.judged_run import LAST_WORDS, send_signal
from tests.tools.faults.durable.proxy import Proxy
from tests.tools.faults.victim import Victim, state

START: Final = 120.0  # seconds for a start, on a machine that is busy
ATTEMPTS: Final = 10  # to start it: it does not start while Redis is away
AGAIN: Final = 0.5  # seconds until the next attempt
PATIENCE: Final = 30.0  # seconds for the end of a process


class ClusterNode:
    def __init__(
        self,
        name: str,
        folder: Path,
        workers: int,
        redis: Path,
        settings: Mapping[str, object],
        build: Path | None = None,
    ) -> None:
        """*redis*: its socket. *build*: see `Victim`."""
        folder.mkdir()
        self.build = build  # from its next start on
        self.name = name
        self.port = free_port()
        self.victim: Victim | None = None  # None: it is dead, ends, or starts
        self.harmed_until = 0.0  # monotonic: it is suspended or cut off, or has just been
        self.proxy = Proxy(folder / "proxy.sock", redis)
        self._folder = folder
        self._workers = workers
        self._settings = {
            **settings,
            "node.name": name,
            "redis.url": f"unix://{folder / 'proxy.sock'}",
        }
        self._ending: Victim | None = None
        self._to_end_by = 0.0  # monotonic
        self._absent = 0.0  # seconds between its end and its next start
        self._start_at: float | None = None  # monotonic; None: it is not to be started
        self._starting: threading.Thread | None = None
        self._started: Victim | None = None
        self._failure = ""
        self._end = False

    def start(self) -> None:
        """Start it in the background, if it is dead or as soon as it has ended; `look()` does so."""
        self._absent = 0.0
        if self.victim is None and self._ending is None and self._starting is None:
            self._start_at = time.monotonic()

    def look(self) -> None:
        """See whether it has ended or started, and which processes serve, and start it if it is time.

        AssertionError: it does not start, has ended by itself, or not as it should.
        """
        now = time.monotonic()
        if self._ending is not None and (code := self._ending.process.poll()) is not None:
            self._ending = None
            self._start_at = now + self._absent
            assert code == 0, f"{self.name} was stopped, and ended with {code}"
        if self._ending is not None:
            assert now < self._to_end_by, f"{self.name} was stopped, and does not end"
        if self._start_at is not None and now >= self._start_at:
            self._start_at = None
            self._starting = threading.Thread(target=self._start, daemon=True)
            self._starting.start()
        if self._starting is not None and not self._starting.is_alive():
            self._starting = None
            assert self._started is not None, f"{self.name} does not start: {self._failure}"
            self.victim, self._started = self._started, None
        if self.victim is not None:
            code = self.victim.process.poll()
            assert code is None, f"{self.name} has ended by itself, with {code}"
            self.victim.look()

    def well(self) -> bool:
        """All its workers serve, as its log says; what harms it need not be in its log yet."""
        return self.victim is not None and not self.victim.absent and time.monotonic() >= self.harmed_until

    def kill(self, absent: float) -> None:
        """SIGKILL for all its processes; it is started again after *absent* seconds."""
        victim = self._leave()
        found = victim.processes()
        victim.signal_all(signal.SIGKILL)
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while any(state(pid) for pid in found):
            assert time.monotonic() < deadline, f"processes of {self.name} do not end"
            victim.process.poll()
        victim.process.wait(PATIENCE)
        self._start_at = time.monotonic() + absent

    def stop(self, absent: float) -> None:
        """SIGTERM for its supervisor, which ends soon; it is started again *absent* seconds after its end."""
        self._ending = self._leave()
        self._absent = absent
        self._to_end_by = time.monotonic() + PATIENCE
        self._ending.process.terminate()

    def text(self) -> str:
        log = self._folder / "node.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def close(self) -> None:
        self._end = True
        if self._starting is not None:
            self._starting.join()
        for victim in (self.victim, self._started, self._ending):
            if victim is not None:
                victim.stop()
        self.proxy.close()

    def _leave(self) -> Victim:
        victim = self.victim
        assert victim is not None
        self.victim = None
        return victim

    def _start(self) -> None:
        for _ in range(ATTEMPTS):
            try:
                self._started = Victim(
                    self._folder, self._workers, self.port, self._settings, patience=START, build=self.build
                )
                return
            except Exception as error:
                self._failure = f"{error}"[-LAST_WORDS:]
            if self._end:
                return
            time.sleep(AGAIN)  # as whoever watches the node would wait
