# What one packet may ask for: a packet is one piece of work, so its parts are counted.
from collections.abc import Callable

import pytest

from broker.mqtt.decode import FILTERS
from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    V5,
    V31,
    V311,
    Connect,
    Packet,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import USER_PROPERTIES, USER_PROPERTY
from broker.reasons import CloseReason
from tests.mqtt.reading import read


def subscribe(filters: int) -> Subscribe:
    return Subscribe(1, [Wanted(b"%d" % n) for n in range(filters)])


def unsubscribe(filters: int) -> Unsubscribe:
    return Unsubscribe(1, [b"%d" % n for n in range(filters)])


def described(pairs: int) -> Properties:
    """So many user properties."""
    return {USER_PROPERTY: [("name", str(n)) for n in range(pairs)]}


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("request_for", [subscribe, unsubscribe])
def test_a_packet_asks_for_so_many_filters_and_no_more(version: int, request_for: Callable[[int], Packet]) -> None:
    """One packet of a megabyte would hold the worker for 300 000 filters, or a lawful one be refused."""
    most, more = request_for(FILTERS), request_for(FILTERS + 1)

    assert ([most], None) == read([encode(most, version)], version)
    assert ([], CloseReason.QUOTA_EXCEEDED) == read([encode(more, version)], version)


def with_properties(kind: str, pairs: int) -> Packet:
    """A packet of each kind that clients give user properties to."""
    if kind == "publish":
        return Publish(b"t", b"", properties=described(pairs))
    if kind == "subscribe":
        return Subscribe(1, [Wanted(b"t")], described(pairs))
    if kind == "will":
        return Connect(V5, "me", will=Will(b"t", b"", properties=described(pairs)))
    return Connect(V5, "me", properties=described(pairs))


@pytest.mark.parametrize("kind", ["publish", "subscribe", "connect", "will"])
def test_a_packet_has_so_many_user_properties_and_no_more(kind: str) -> None:
    """One packet of a megabyte would become 200 000 objects of fifty times its bytes, or a lawful one be refused."""
    most, more = with_properties(kind, USER_PROPERTIES), with_properties(kind, USER_PROPERTIES + 1)

    assert ([most], None) == read([encode(most, V5)], V5)
    assert ([], CloseReason.QUOTA_EXCEEDED) == read([encode(more, V5)], V5)
