# The last words: a client that is still sending hears why it is closed, on every transport.
#
# A socket that is closed while bytes wait in it answers with a reset, and the reset overtakes what was said before: the
# client sees "connection reset", and never why. So the broker ends its side, reads on for a moment, then closes.
from contextlib import closing

import pytest

from broker.mqtt.packets import V5, Disconnect, Packet
from broker.mqtt.stream import PacketReader
from tests.system.addresses import TRANSPORTS, Address, Transport
from tests.system.processes import BrokerProcess
from tests.system.raw import LIMIT, Connection, RawClient
from tests.system.websocket import opened

MALFORMED = 0x81
CHUNK = 256 * 1024  # bytes that we still send, so many times: more than can be under way when the broker decides
CHUNKS = 16


def connection(address: Address) -> Connection:
    return opened(address) if address.websocket else address.open()


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
    with closing(RawClient(addresses[transport].port, connection=connection(addresses[transport]))) as client:
        client.connect(name)

        client.socket.sendall(b"\x00\x00")  # no packet has type 0
        for _ in range(CHUNKS):
            client.socket.sendall(bytes(CHUNK))

        heard = heard_until_end(client)

    assert [MALFORMED] == [packet.code for packet in heard if isinstance(packet, Disconnect)]
