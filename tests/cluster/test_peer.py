# What is written to a peer, and what of it may wait for more (BRIEF in delivery/flushing.py).
from collections.abc import Iterator

import pytest

from broker.cluster import wire
from broker.cluster.confirmations import ConfirmingPeer
from broker.cluster.peer import Peer
from broker.delivery.completion import Completion
from broker.session.message import NEVER, Message
from tests.cluster.lanes import Lanes


@pytest.fixture
def peer() -> Iterator[Peer]:
    lanes = Lanes()
    yield lanes.join(1, node="other")
    lanes.close()


def message(qos: int) -> Message:
    made = Message(b"a", b"payload", qos, False, b"", NEVER)
    made.completion = Completion()
    return made


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_may_wait_for_more(peer: Peer, qos: int) -> None:
    """Each one of many would cross by itself, at the price of three wake-ups."""
    peer.offer(message(qos), 0.0)
    peer.offer_shared(b"group", b"a", message(qos), 0, 0.0)

    assert peer.data.outbox.size
    assert not peer.data.outbox.pressing


def test_a_frame_does_not_wait(peer: Peer) -> None:
    """A takeover, whose mark is behind the last message, would be as much later."""
    peer.offer(message(0), 0.0)
    peer.write(wire.DATA_HEAD + wire.frame(wire.BARRIER, b"1"))

    assert peer.data.outbox.pressing


def test_a_publish_whose_publisher_waits_does_not_wait(peer: Peer) -> None:
    """Its PUBACK would be as much later."""
    confirming: ConfirmingPeer = peer.confirming
    confirming.offer(message(1), 0.0)

    assert peer.data.outbox.pressing
