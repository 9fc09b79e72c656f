# The strategies of delivery on a real node: `always` holds nothing, and `buffered` loses nothing that it holds.
#
# The hold of a buffered message is a minute here, so whatever arrives was sent for another reason, and no time is
# measured.
import select
import socket
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from broker.mqtt.packets import V5, Disconnect, Publish
from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("a matter of Weir's delivery")

StartWeir = Callable[..., BrokerProcess]
Readers = Callable[[BrokerProcess, str], tuple[RawClient, RawClient]]
ENOUGH: Final = 3  # messages that are not held
SHUTTING_DOWN: Final = 0x8B
SETTINGS: Final[dict[str, object]] = {
    "node.workers": 1,
    "drain.timeout": "1s",
    "delivery.buffered_hold": "60s",
    "delivery.non_persistent.buffered_msg_count": ENOUGH,
    "delivery.non_persistent.flush": "buffered",
}


@pytest.fixture
def clients() -> Iterator[Readers]:
    made: list[RawClient] = []

    def connect(weir: BrokerProcess, topic: str) -> tuple[RawClient, RawClient]:
        """(a subscriber of *topic*, a publisher)."""
        pair = RawClient(weir.port, V5), RawClient(weir.port, V5)
        made.extend(pair)
        for client, name in zip(pair, ("reader", "writer"), strict=True):
            client.connect(name)
        pair[0].subscribe(topic)
        return pair

    yield connect
    for one in made:
        one.close()


def silent(reader: RawClient) -> bool:
    """Whether nothing is there to be read."""
    assert isinstance(reader.socket, socket.socket)
    return not select.select([reader.socket], [], [], 0.1)[0]


def publish(writer: RawClient, *payloads: bytes) -> None:
    """Publish, and wait until the broker has taken all: the answer to the last one follows them."""
    for payload in payloads:
        writer.send(Publish(b"a", payload))
    writer.ping()


def test_always_sends_at_once(start_weir: StartWeir, clients: Readers) -> None:
    """A client would get its messages with a delay that the configuration rules out."""
    weir = start_weir({**SETTINGS, "delivery.non_persistent.flush": "always"})
    reader, writer = clients(weir, "a")
    publish(writer, b"1")

    assert b"1" == reader.expect(Publish).payload


def test_buffered_messages_are_sent_together_and_at_the_latest_when_the_node_stops(
    start_weir: StartWeir, clients: Readers
) -> None:
    """Each stop of a node would lose the QoS 0 messages that it holds, or a client wait for one that never comes."""
    weir = start_weir(SETTINGS)
    reader, writer = clients(weir, "a")
    publish(writer, b"1", b"2")
    assert silent(reader)
    publish(writer, b"3")
    assert [b"1", b"2", b"3"] == [reader.expect(Publish).payload for _ in range(ENOUGH)]
    publish(writer, b"4", b"5")
    assert silent(reader)
    assert 0 == weir.terminate()

    assert [b"4", b"5"] == [reader.expect(Publish).payload for _ in range(2)]
    assert SHUTTING_DOWN == reader.expect(Disconnect).code
