# Wills: every way to end, and what the others hear of it.
from collections.abc import Callable

import pytest

from broker.mqtt.packets import V5, V31, V311, Properties, Will
from broker.mqtt.properties import (
    CONTENT_TYPE,
    MESSAGE_EXPIRY_INTERVAL,
    SESSION_EXPIRY_INTERVAL,
    USER_PROPERTY,
    WILL_DELAY_INTERVAL,
)
from tests.system.raw import RawClient

Dial = Callable[..., RawClient]
WITH_WILL = 0x04


@pytest.fixture
def heir(dial: Dial, name: str) -> RawClient:
    client = dial(V5)
    client.connect(f"{name}-heir")
    client.subscribe(f"{name}/will", qos=2)
    return client


def mortal(
    dial: Dial, name: str, version: int = V5, properties: Properties | None = None, session: int = 0
) -> RawClient:
    """A client with a will, which has the payload "gone"."""
    client = dial(version)
    will = Will(f"{name}/will".encode(), b"gone", qos=1, properties=properties or {})
    client.connect(f"{name}-mortal", will=will, properties={SESSION_EXPIRY_INTERVAL: session} if session else None)
    return client


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_closed_socket_fires_the_will(dial: Dial, heir: RawClient, name: str, version: int) -> None:
    """A client that crashed would be missed by nobody [MQTT-3.1.2-8]."""
    mortal(dial, name, version).close()

    assert b"gone" == heir.take().payload


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_disconnect_forgets_the_will(dial: Dial, heir: RawClient, name: str, version: int) -> None:
    """A polite client would be reported dead [MQTT-3.1.2-10]."""
    mortal(dial, name, version).disconnect()

    last = dial(V5)
    last.connect(f"{name}-last")
    last.publish(f"{name}/will", b"end")
    assert [] == heir.take_until(b"end")


def test_disconnect_with_will_fires_it(dial: Dial, heir: RawClient, name: str) -> None:
    """A client could not ask for its will (reason code 0x04)."""
    mortal(dial, name).disconnect(WITH_WILL)

    assert b"gone" == heir.take().payload


def test_a_protocol_error_fires_the_will(dial: Dial, heir: RawClient, name: str) -> None:
    """A client that we throw out would leave without its will [MQTT-3.1.2-8]."""
    client = mortal(dial, name)

    client.socket.sendall(b"\xff\x00")

    client.expect_end()
    assert b"gone" == heir.take().payload


def test_a_takeover_fires_the_will(dial: Dial, heir: RawClient, name: str) -> None:
    """The will of a connection that was replaced would be lost (5.0, 3.1.4: no delay, so it fires)."""
    mortal(dial, name)

    dial(V5).connect(f"{name}-mortal")

    assert b"gone" == heir.take().payload


def test_the_will_waits_for_its_delay(dial: Dial, heir: RawClient, name: str) -> None:
    """A short loss of contact would already be reported, or a long one never [MQTT-3.1.2-8]."""
    client = mortal(dial, name, properties={WILL_DELAY_INTERVAL: 1}, session=300)
    client.close()
    other = dial(V5)
    other.connect(f"{name}-other")
    other.publish(f"{name}/will", b"first")

    assert [b"first", b"gone"] == [heir.take().payload, heir.take().payload]


def test_a_client_that_is_back_in_time_lives(dial: Dial, heir: RawClient, name: str) -> None:
    """A will would fire although the session goes on [MQTT-3.1.3-9]."""
    mortal(dial, name, properties={WILL_DELAY_INTERVAL: 1}, session=300).close()
    back = dial(V5)
    will = Will(f"{name}/will".encode(), b"not yet")  # nor may the old delay fire the new will
    back.connect(f"{name}-mortal", clean_start=False, will=will, properties={SESSION_EXPIRY_INTERVAL: 300})

    # A second will with a longer delay: when it fires, the first would have fired before.
    clock = dial(V5)
    clock.connect(
        f"{name}-clock",
        will=Will(f"{name}/will".encode(), b"end", properties={WILL_DELAY_INTERVAL: 2}),
        properties={SESSION_EXPIRY_INTERVAL: 300},
    )
    clock.close()
    assert [] == heir.take_until(b"end")


def test_the_end_of_the_session_ends_the_delay(dial: Dial, heir: RawClient, name: str) -> None:
    """A will could be held back beyond the session it belongs to [MQTT-3.1.2-8]."""
    mortal(dial, name, properties={WILL_DELAY_INTERVAL: 300}, session=1).close()

    assert b"gone" == heir.take().payload


def test_a_will_carries_its_properties(dial: Dial, heir: RawClient, name: str) -> None:
    """What a will says about itself would be dropped on the way."""
    said: Properties = {
        MESSAGE_EXPIRY_INTERVAL: 1000,
        CONTENT_TYPE: "text/plain",
        USER_PROPERTY: [("a", "1"), ("b", "2"), ("a", "3")],
    }
    mortal(dial, name, properties=said).close()

    heard = heir.take().properties
    assert (said[CONTENT_TYPE], said[USER_PROPERTY]) == (heard[CONTENT_TYPE], heard[USER_PROPERTY])


def test_a_retained_will_is_retained(dial: Dial, name: str) -> None:
    """Who subscribes later would not learn that the client is dead [MQTT-3.1.2-15]."""
    heir, client = dial(V5), dial(V5)
    heir.connect(f"{name}-heir")
    heir.subscribe(f"{name}/will")
    client.connect(f"{name}-mortal", will=Will(f"{name}/will".encode(), b"gone", retain=True))
    client.close()
    heir.take()

    late = dial(V5)
    late.connect(f"{name}-late")
    ahead = late.subscribe(f"{name}/will")

    message = (ahead or [late.take()])[0]
    assert (b"gone", True) == (message.payload, message.retain)
