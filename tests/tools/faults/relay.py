# How late the machine itself is: a ring of plain processes that a message passes beside those of the broker.
#
# A message between two clients waits for us, for the publisher's worker, for the subscriber's, and for us again. So
# does one in this ring, whose processes do nothing but pass it on. What it was late is the processor's fault and not
# the broker's, and is subtracted from what a client had to wait in the same time.
import os
import select
import subprocess
import sys
from collections import deque
from itertools import pairwise
from typing import Final

from tests.tools.fuzz.loop import Loop

RELAYS: Final = 2
EVERY: Final = 0.01  # seconds between two messages
KEPT: Final = 3000  # samples: half a minute
RELAY: Final = """
import os, sys
take, give = int(sys.argv[1]), int(sys.argv[2])
while data := os.read(take, 4096):
    os.write(give, data)
"""


class Ring:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._processes: list[subprocess.Popen[bytes]] = []
        pipes = [os.pipe() for _ in range(RELAYS + 1)]
        for (take, _), (_, give) in pairwise(pipes):
            command = [sys.executable, "-S", "-E", "-c", RELAY, str(take), str(give)]
            self._processes.append(subprocess.Popen(command, pass_fds=(take, give)))
            os.close(take)
            os.close(give)
        self._give, self._take = pipes[0][1], pipes[-1][0]
        self._sent: deque[float] = deque()  # when each should have been sent: that we are late ourselves counts
        self._due = loop.now
        self._samples: deque[tuple[float, float]] = deque(maxlen=KEPT)  # (sent, came back)
        loop.watch(self._take, select.EPOLLIN, self._back)
        self._send()

    def late(self, since: float, until: float) -> float:
        """The longest (s) that a message of the ring took which was on its way between *since* and *until*."""
        worst = until - self._sent[0] if self._sent else 0.0
        for sent, back in reversed(self._samples):
            if back < since:
                break
            if sent <= until:
                worst = max(worst, back - sent)
        return worst

    def close(self) -> None:
        self._loop.forget(self._take)
        os.close(self._give)
        os.close(self._take)
        for process in self._processes:
            process.wait()

    def _send(self) -> None:
        now = self._loop.now
        self._sent.append(min(self._due, now))
        os.write(self._give, b".")
        self._due = max(self._due, now - EVERY) + EVERY
        self._loop.later(self._due - now, self._send)

    def _back(self, mask: int) -> None:
        for _ in os.read(self._take, 4096):
            self._samples.append((self._sent.popleft(), self._loop.now))
