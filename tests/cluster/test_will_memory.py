# The account of wills beside what they take, as the allocator says: at their sessions, and as the registry keeps them.
import tracemalloc

import pytest

from broker.cluster.seal import Seal
from broker.cluster.will_record import encode, sealed
from broker.metrics.counters import Counters
from broker.mqtt.connect import decode_connect
from broker.mqtt.encode import encode as encode_packet
from broker.mqtt.fields import read_length
from broker.mqtt.packets import V5, Connect, Properties
from broker.mqtt.packets import Will as WillFields
from broker.mqtt.properties import CONTENT_TYPE, USER_PROPERTY, WILL_DELAY_INTERVAL
from broker.session.will import Will, will_memory
from tests.store.loop import Lines

BYTES = 2_000_000  # of all wills, about: what Python's free lists give before is little beside it
MANY: Properties = {USER_PROPERTY: [(f"name{number}", f"{number}") for number in range(50)]}

pytestmark = [
    pytest.mark.no_cover,  # what coverage remembers would count as ours
    pytest.mark.usefixtures("traced"),
]


@pytest.mark.parametrize("payload", [0, 30, 400, 5000])
@pytest.mark.parametrize("properties", [{}, {WILL_DELAY_INTERVAL: 30, CONTENT_TYPE: "text"}, MANY])
def test_the_account_of_wills_is_what_they_take(payload: int, properties: Properties) -> None:
    """Clients could fill the memory of a worker with wills that hardly count."""
    seal = Seal(bytes(32), Counters(), Lines())
    packets = []
    count = BYTES // (400 + 2 * payload + 40 * len(str(properties)))
    for number in range(count):
        fields = WillFields(b"devices/%06d/gone" % number, bytes(payload), 1, True, properties)
        packets.append(encode_packet(Connect(V5, "client", will=fields), V5))
    before = tracemalloc.get_traced_memory()[0]
    held = 0
    wills = []
    for packet in packets:
        _, body = read_length(packet, 1, len(packet), V5)
        will = decode_connect(packet[0], packet, body, len(packet)).will
        assert will is not None
        wills.append((Will(will), sealed(seal, "client", encode(will, 0, None))))
        held += will_memory(will)
        del will
    grown = tracemalloc.get_traced_memory()[0] - before

    assert 0.85 * grown < held < 1.15 * grown, (grown / count, held / count)
