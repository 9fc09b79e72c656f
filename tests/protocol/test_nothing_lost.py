# What was sent in good order is done, whatever the same client sends after it.
from collections.abc import Callable

import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V311, Disconnect, Publish, Will
from tests.inprocess import Broker
from tests.protocol.talk import goodbye, payloads, subscribe

Brokers = Callable[..., Broker]

WITH_WILL = 0x04
ERRORS = [0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]  # that a client may send (3.14.2.1)


@pytest.mark.parametrize("code", [WITH_WILL, *ERRORS])
def test_who_leaves_with_an_error_has_its_will_published(brokers: Brokers, code: int) -> None:
    """A client that gives up would go unnoticed: only code 0 takes the will back [MQTT-3.14.4-3]."""
    broker = brokers()
    watcher = broker.connect("watcher")
    subscribe(watcher, "wills")
    mortal = broker.connect("mortal", V5, will=Will(b"wills", b"gone"))
    mortal.send(Disconnect(code))

    assert [b"gone"] == payloads(watcher.receive())
    assert 1 == broker.session_count()


LONG = b"\x30\xff\xff\xff\xff\x7f"  # a length of five bytes
PADDED = b"\x30\x84\x00\x00\x01t?"  # a length of a byte too many, which 3.x does not forbid [MQTT-1.5.5-1]
PADDED_TWICE = b"\x30\x84\x80\x00\x00\x01t?"
SHORT = b"\x30\x01\x00\x01t?"  # ends within its topic


@pytest.mark.parametrize(
    ("version", "bad"),
    [(V311, LONG), (V5, LONG), (V311, SHORT), (V5, SHORT), (V5, PADDED), (V5, PADDED_TWICE)],
)
def test_what_stands_before_a_malformed_packet_is_delivered(brokers: Brokers, version: int, bad: bytes) -> None:
    """Packets that we look at together would be lost together, as soon as the one behind them is bad."""
    broker = brokers()
    listener = broker.connect("listener")
    subscribe(listener, "t")
    client = broker.connect("me", version)
    good = b"".join(encode(Publish(b"t", b"%d" % n), version) for n in range(3))
    client.send_bytes(good + bad)

    assert (0x81 if version == V5 else None) == goodbye(client)
    assert [b"0", b"1", b"2"] == payloads(listener.receive())
