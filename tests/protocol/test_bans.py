# Bans, applied to clients that are connected and to those that come.
from collections.abc import Callable

import pytest

from broker.auth.bans import Ban
from broker.mqtt.packets import V5, V311, ConnAck, Connect, Disconnect
from broker.reasons import CloseReason
from tests.inprocess import Broker
from tests.protocol.talk import closed

Brokers = Callable[..., Broker]


def add(broker: Broker, kind: str, value: str, seconds: float = 60.0) -> None:
    """What the supervisor tells when a ban is made."""
    until = broker.clock.now + seconds
    one = Ban(kind, value, until, seconds=seconds, by="jo", reason="test", made=0.0)
    broker.worker.protocol.bans.change([{**one.described(), "until": until}], [])
    broker.settle()


@pytest.mark.parametrize(("version", "code"), [(V311, 5), (V5, 0x8A)])
def test_a_banned_client_is_refused_until_the_ban_ends(brokers: Brokers, version: int, code: int) -> None:
    """A client that was thrown out would be back a moment later, or be kept out for ever."""
    broker = brokers()
    add(broker, "pattern", "bot-*")
    client = broker.open(version)
    client.send(Connect(version, "bot-1"))
    broker.settle()

    assert [ConnAck(False, code)] == client.receive()
    assert {CloseReason.BANNED: 1} == closed(broker)
    assert 0 == broker.connect("other", version).connack.code
    broker.advance(61.0)
    assert 0 == broker.connect("bot-1", version).connack.code


def test_a_new_ban_ends_the_connections_that_it_concerns(brokers: Brokers) -> None:
    """A client would stay for as long as it holds its connection."""
    broker = brokers()
    bots = [broker.connect(f"bot-{number}", V5) for number in range(120)]
    other = broker.connect("other", V5)
    add(broker, "pattern", "bot-*")

    assert [0x98] * 120 == [packet.code for bot in bots for packet in bot.receive() if isinstance(packet, Disconnect)]
    assert {CloseReason.BANNED_WHILE_CONNECTED: 120} == closed(broker)
    assert not other.closed
