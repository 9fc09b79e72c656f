# A worker that does nothing for a moment: whose publishes wait for it, and whose do not. It is stopped as a whole, for
# less than the second after which it would be taken for dead; how soon others feel it is judged by our clock.
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, Ack, Publish
from broker.mqtt.stream import PacketReader
from tests.system import scene
from tests.system.processes import BrokerProcess
from tests.system.raw import LIMIT, RawClient
from tests.system.scene import StartWeir

pytestmark = [pytest.mark.weir_only("it is one process"), pytest.mark.slow, pytest.mark.faults]

MANY = 3000  # more than a gate lets pass, and than the kernel hides
STOPPED = 0.7  # seconds
HELD = 0.3  # seconds until who needs the stopped worker is held back
NOTICED = 0.1  # seconds


class Burst:
    """Publishes of QoS 1 that a client has sent at once; how many of them are acknowledged."""

    def __init__(self, client: RawClient, topic: bytes) -> None:
        self._socket = cast(socket.socket, client.socket)
        self._reader = PacketReader(V311, LIMIT)
        self._socket.sendall(b"".join(encode(Publish(topic, b"x", 1, packet_id=n + 1), V311) for n in range(MANY)))
        self.acknowledged = 0

    def look(self) -> int:
        while select.select([self._socket], [], [], 0.0)[0]:
            packets = self._reader.feed(self._socket.recv(65536))
            self.acknowledged += len([packet for packet in packets if isinstance(packet, Ack)])
        return self.acknowledged


@pytest.fixture
def weir(start_weir: StartWeir) -> BrokerProcess:
    return scene.begin(start_weir)


@pytest.fixture
def clients(weir: BrokerProcess) -> Iterator[scene.Clients]:
    with closing(scene.Clients(weir)) as found:
        yield found


def test_who_needs_a_worker_that_stands_still_waits_and_nobody_else(
    weir: BrokerProcess, clients: scene.Clients
) -> None:
    """One worker that falls behind would slow all clients of the others, or fill their memory."""
    there, here = clients.on(1), clients.on(0)
    there.subscribe("there")
    here.subscribe("here")
    needing, other = clients.on(0), clients.on(0)
    other.publish("here", b"", 1)
    pid = cast(int, scene.ask(weir, "status")["workers"][1]["pid"])
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        burst = Burst(needing, b"there")
        longest, early = 0.0, -1
        while (elapsed := time.monotonic() - began) < STOPPED:
            if early < 0 and elapsed >= HELD:
                early = burst.look()
            sent = time.monotonic()
            other.publish("here", b"", 1)
            longest = max(longest, time.monotonic() - sent)
        late = burst.look()
    finally:
        os.kill(pid, signal.SIGCONT)
    scene.until(lambda: burst.look() == MANY, "what waited is not taken")

    print(
        f"acknowledged within {HELD} s: {early}, {STOPPED} s: {late}; the other waited {longest * 1e3:.1f} ms at most"
    )
    assert 0 < early == late < MANY
    assert longest < NOTICED
    scene.until(lambda: "gate" in scene.totals(weir)["reasons"]["pauses"], "nobody waited for the gate")
