# Counters of a node, from its admin port.
#
# The node has them for as long as its supervisor lives, over the deaths of workers; the next supervisor begins anew. A
# supervisor that is stopped or dead does not answer, so what it counted since the last answer is missing here.
import select
import socket
from collections.abc import Iterable
from typing import Final

from tests.system.processes import HOST
from tests.tools.fuzz.loop import Loop

REQUEST: Final = f"GET /metrics HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
READ: Final = 65536


class NodeCounters:
    def __init__(self, loop: Loop, port: int, names: Iterable[str]) -> None:
        """Of the admin port *port*. *names*: as Prometheus has them, without `weir_` and `_total`."""
        self.port = port
        self.totals = dict.fromkeys(names, 0.0)  # of all supervisors
        self._last = dict(self.totals)  # of the last one
        self._loop = loop
        self._sock: socket.socket | None = None
        self._answer = b""
        self._asked = False

    def ask(self) -> None:
        """Read them soon; a request that is not answered yet is given up."""
        self.close()
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((HOST, self.port))  # an error shows in `_ready()`
        self._sock, self._answer, self._asked = sock, b"", False
        self._loop.watch(sock.fileno(), select.EPOLLIN | select.EPOLLOUT, self._ready)

    def close(self) -> None:
        if self._sock is not None:
            self._loop.forget(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def waiting(self) -> bool:
        """Whether an answer is awaited."""
        return self._sock is not None

    def _ready(self, mask: int) -> None:
        sock = self._sock
        assert sock is not None
        try:
            if not self._asked:
                sock.send(REQUEST)
                self._asked = True
                self._loop.change(sock.fileno(), select.EPOLLIN)
                return
            data = sock.recv(READ)
        except BlockingIOError:
            return
        except OSError:  # nobody listens, or the supervisor has died
            self.close()
            return
        self._answer += data
        if not data:
            self.close()
            self._take(self._answer.decode())

    def _take(self, answer: str) -> None:
        found = dict(line.rpartition(" ")[::2] for line in answer.splitlines())
        if not answer.endswith("\n") or not all(f"weir_{name}_total" in found for name in self.totals):
            return  # it was cut off
        for name, last in self._last.items():
            value = float(found[f"weir_{name}_total"])
            self.totals[name] += value if value < last else value - last
            self._last[name] = value
