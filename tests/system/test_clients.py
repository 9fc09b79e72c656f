# What every client program may expect, said once and asked of all of them.
#
# What hangs on the library and the transport is asked of every pair of them; what the broker alone decides, only on
# TCP. A test of the first kind costs a third of a second at most, so the whole stays a matter of a minute.
import time
from collections.abc import Callable, Iterator

import pytest

from tests.system.addresses import Address, Transport
from tests.system.processes import PATIENCE, BrokerProcess
from tests.system.programs import EVERYWHERE, ON_TCP, PROGRAMS, stop_hosts
from tests.system.programs.interface import LastWords, Listener, NothingCame, Program, Received, Said, Wish

Listen = Callable[..., Listener]
Publish = Callable[..., None]
Choice = tuple[str, Transport]  # of a program, and of the transport it uses

# Whatever a message of 5.0 can say about itself. MQTT.js keeps the order of user properties only within a name.
EVERYTHING = Said("text/plain", "answers/here", b"no. 1", (("a", "1"), ("a", "2"), ("b", "3")), expiry=1000)
TAKEN_OVER = 0x8E


@pytest.fixture(scope="module", autouse=True)
def hosts() -> Iterator[None]:
    """Node and the browser, once started, serve the whole module."""
    yield
    stop_hosts()


def those(pairs: list[Choice], version: str = "") -> pytest.MarkDecorator:
    """Run the test with each of these pairs; a version narrows them to the programs that speak it."""
    chosen = [(name, transport) for name, transport in pairs if name.endswith(version)]
    return pytest.mark.parametrize("chosen", chosen, ids="-".join)


@pytest.fixture
def program(chosen: Choice) -> Program:
    return PROGRAMS[chosen[0]]


@pytest.fixture
def address(chosen: Choice, broker: BrokerProcess, addresses: dict[Transport, Address]) -> Address:
    return addresses[chosen[1]]


@pytest.fixture
def publish(program: Program, address: Address) -> Publish:
    """Program.publish to the broker."""

    def publish_there(topic: str, payloads: list[bytes], qos: int = 0, **more: object) -> None:
        program.publish(address, topic, payloads, qos, **more)  # type: ignore[arg-type]

    return publish_there


@pytest.fixture
def listen(program: Program, address: Address) -> Iterator[Listen]:
    """Program.listen on the broker; who is still there after the test leaves."""
    there: list[Listener] = []

    def open_listener(topic_filter: str, qos: int = 0, **wish: object) -> Listener:
        listener = program.listen(address, topic_filter, Wish(qos, **wish))  # type: ignore[arg-type]
        there.append(listener)
        return listener

    yield open_listener
    for listener in there:
        if not listener.ended:
            listener.leave()


@those(EVERYWHERE)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_arrive_in_order_at_the_qos_they_were_sent(
    publish: Publish, listen: Listen, name: str, qos: int
) -> None:
    """QoS 0, 1 or 2 would not work with this client program, in or out, 3.1.1 [MQTT-7.0.0-2]."""
    listener = listen(f"{name}/+", qos)
    payloads = [f"{n} grüße".encode() for n in range(20)]

    publish(f"{name}/topic", payloads, qos)

    assert [Received(f"{name}/topic", p, qos, False) for p in payloads] == [listener.take() for _ in payloads]


@those(ON_TCP)
def test_the_lower_qos_of_publish_and_subscription_counts(publish: Publish, listen: Listen, name: str) -> None:
    """A subscriber would get a QoS that it did not ask for [MQTT-3.8.4-8]."""
    modest, demanding = listen(name, 0), listen(name, 2)

    publish(name, [b"x"], 1)

    assert (0, 1) == (modest.take().qos, demanding.take().qos)


@those(EVERYWHERE)
def test_a_retained_message_waits_for_the_subscriber(publish: Publish, listen: Listen, name: str) -> None:
    """A retained message would be lost, kept after its successor, or shown as a fresh one."""
    publish(name, [b"first"], 1, retain=True)
    publish(name, [b"second"], 1, retain=True)

    assert Received(name, b"second", 1, True) == listen(name, 1).take()


@those(ON_TCP)
def test_an_empty_payload_clears_the_retained_message(publish: Publish, listen: Listen, name: str) -> None:
    """A retained message could not be removed [MQTT-3.3.1-6]."""
    publish(name, [b"old"], 1, retain=True)
    publish(name, [b""], 1, retain=True)
    listener = listen(name, 1)

    publish(name, [b"new"], 1)

    assert Received(name, b"new", 1, False) == listener.take()


@those(EVERYWHERE)
def test_the_will_of_a_client_that_dies_is_published(listen: Listen, name: str) -> None:
    """Nobody would learn that a client has died."""
    heir = listen(f"{name}/will", 1)
    mortal = listen(f"{name}/other", will=LastWords(f"{name}/will", b"gone"))

    mortal.die()

    assert b"gone" == heir.take().payload


# On 5.0 a mosquitto_sub that is told to stop asks for its will with 0x04; test_wills.py has that case.
@those([pair for pair in EVERYWHERE if pair[0] != "mosquitto-5.0"])
def test_the_will_of_a_client_that_leaves_is_not(publish: Publish, listen: Listen, name: str) -> None:
    """A client that said good-bye would be reported dead [MQTT-3.1.2-10]."""
    heir = listen(f"{name}/will", 1)
    polite = listen(f"{name}/other", will=LastWords(f"{name}/will", b"gone"))
    polite.leave()

    publish(f"{name}/will", [b"still here"], 1)

    assert b"still here" == heir.take().payload


@those(EVERYWHERE)
def test_a_kept_session_gets_what_came_while_it_was_away(publish: Publish, listen: Listen, name: str) -> None:
    """A client that was away would lose QoS 1 and 2 messages, or get them out of order."""
    listen(f"{name}/#", 2, session=name).leave()
    payloads = [b"%d" % n for n in range(20)]
    publish(f"{name}/one", payloads, 1)
    publish(f"{name}/two", payloads, 2)

    back = listen(f"{name}/#", 2, session=name)

    expected = [Received(f"{name}/one", p, 1, False) for p in payloads]
    expected += [Received(f"{name}/two", p, 2, False) for p in payloads]
    assert expected == [back.take() for _ in expected]


@those(EVERYWHERE)
def test_a_shared_subscription_shares(publish: Publish, listen: Listen, name: str) -> None:
    """Members of a group would get copies, or one of them everything."""
    group = [listen(f"$share/group/{name}/+", 1) for _ in range(3)]
    payloads = [b"%d" % n for n in range(60)]

    publish(f"{name}/x", payloads, 1)

    shares = collect(group, len(payloads))
    assert sorted(payloads) == sorted(payload for share in shares for payload in share)
    assert all(shares)


def collect(group: list[Listener], count: int) -> list[list[bytes]]:
    """What each of *group* has received when they have *count* messages together."""
    shares: list[list[bytes]] = [[] for _ in group]
    deadline = time.monotonic() + PATIENCE
    while sum(map(len, shares)) < count and time.monotonic() < deadline:
        for listener, share in zip(group, shares, strict=True):
            try:
                share.append(listener.take(patience=0.02).payload)
            except NothingCame:
                pass  # the others have it
    return shares


@those(EVERYWHERE, "5.0")
def test_a_message_says_the_same_when_it_arrives(listen: Listen, publish: Publish, name: str) -> None:
    """What a message says about itself would get lost, or be changed on the way [MQTT-3.3.2-15]."""
    listener = listen(f"{name}/+", 1, identifier=7)

    publish(f"{name}/topic", [b"x"], 1, said=EVERYTHING)

    said = listener.take().said
    assert EVERYTHING._replace(expiry=said.expiry, subscriptions=(7,)) == said
    assert 900 < said.expiry <= 1000  # less what it waited [MQTT-3.3.2-6]


@those(EVERYWHERE, "5.0")
def test_a_topic_alias_stands_for_its_topic(listen: Listen, publish: Publish, name: str) -> None:
    """What was published by an alias would be lost, or take another topic's name (5.0, 3.3.2.3.4)."""
    listener = listen(f"{name}/+", 1)

    publish(f"{name}/topic", [b"1", b"2", b"3"], 1, said=Said(alias=1))

    assert [Received(f"{name}/topic", p, 1, False) for p in (b"1", b"2", b"3")] == [listener.take() for _ in range(3)]


# Only these resolve an alias that the broker has set.
@pytest.mark.weir_only("2.0.11 sets none")
@those([pair for pair in EVERYWHERE if pair[0].startswith(("gmqtt", "mqttjs", "browser"))], "5.0")
def test_a_client_that_allows_it_gets_topic_aliases(listen: Listen, publish: Publish, name: str) -> None:
    """A long topic would be sent again with each message, or the client be led to a wrong one."""
    listener = listen(f"{name}/+", 1, aliases=3)

    publish(f"{name}/topic", [b"1", b"2", b"3"], 1)

    heard = [listener.take() for _ in range(3)]
    assert [(f"{name}/topic", p) for p in (b"1", b"2", b"3")] == [(message.topic, message.payload) for message in heard]
    assert 1 == heard[-1].said.alias


# A mosquitto_sub that lost its connection comes back, and would take the session over in its turn.
@pytest.mark.weir_only("2.0.11 only closes")
@those([pair for pair in EVERYWHERE if not pair[0].startswith("mosquitto")], "5.0")
def test_a_client_hears_why_it_was_thrown_out(listen: Listen, name: str) -> None:
    """The last words of the broker would not reach the client on this transport: one end looks like another."""
    first = listen(name, session=name)

    listen(name, session=name)

    assert TAKEN_OVER == first.farewell()
