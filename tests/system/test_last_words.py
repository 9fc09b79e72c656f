# The last words: a client that is still sending hears why it is closed, on every transport.
#
# A socket that is closed while bytes wait in it answers with a reset, and the reset overtakes what was said before: the
# client sees "connection reset", and never why. So the broker ends its side, reads on for a moment, then closes.
import threading

import pytest

from broker.mqtt.packets import V5, Disconnect, Packet
from broker.mqtt.stream import PacketReader
from tests.system.addresses import TRANSPORTS, Address, Transport
from tests.system.processes import BrokerProcess
from tests.system.raw import LIMIT, Connection, RawClient
from tests.system.websocket import opened

MALFORMED = 0x81
FLOOD = 64 * 1024  # bytes at once, again and again


def connection(address: Address) -> Connection:
    return opened(address) if address.websocket else address.open()


class Flood:
    """Sends until the broker takes no more; what stopped it."""

    def __init__(self, target: Connection) -> None:
        self._target = target
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        try:
            while not self._stop.is_set():
                self._target.sendall(bytes(FLOOD))
        except OSError:
            pass  # the broker has closed

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def heard_until_end(client: RawClient) -> list[Packet]:
    """All that the broker says until it ends its side. ConnectionResetError: it did not end it, but reset it."""
    reader = PacketReader(V5, LIMIT)
    heard: list[Packet] = []
    while data := client.socket.recv(65536):
        heard += reader.feed(data)
    return heard


@pytest.mark.weir_only("2.0.11 closes at once")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_client_that_is_still_sending_hears_why(
    broker: BrokerProcess, addresses: dict[Transport, Address], name: str, transport: Transport
) -> None:
    """The reason for a DISCONNECT would be lost in a reset."""
    client = RawClient(addresses[transport].port, connection=connection(addresses[transport]))
    client.connect(name)
    client.socket.sendall(b"\x00\x00")  # no packet has type 0
    flood = Flood(client.socket)

    heard = heard_until_end(client)

    flood.stop()
    client.close()
    assert [MALFORMED] == [packet.code for packet in heard if isinstance(packet, Disconnect)]
