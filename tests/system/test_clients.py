# What every client program may expect, said once and asked of all of them.
import time
from collections.abc import Callable, Iterator

import pytest

from tests.system.processes import PATIENCE
from tests.system.programs import PROGRAMS, LastWords, Listener, NothingCame, Program, Received

Listen = Callable[..., Listener]


@pytest.fixture(params=list(PROGRAMS))
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]


@pytest.fixture
def listen(program: Program, port: int) -> Iterator[Listen]:
    """Program.listen on the broker; who is still there after the test leaves."""
    there: list[Listener] = []

    def open_listener(topic_filter: str, qos: int = 0, **options: object) -> Listener:
        listener = program.listen(port, topic_filter, qos, **options)  # type: ignore[arg-type]
        there.append(listener)
        return listener

    yield open_listener
    for listener in there:
        if not listener.ended:
            listener.leave()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_arrive_in_order_at_the_qos_they_were_sent(
    program: Program, listen: Listen, port: int, name: str, qos: int
) -> None:
    """QoS 0, 1 or 2 would not work with this client program, in or out, 3.1.1 [MQTT-7.0.0-2]."""
    listener = listen(f"{name}/+", qos)
    payloads = [f"{n} grüße".encode() for n in range(20)]

    program.publish(port, f"{name}/topic", payloads, qos)

    assert [Received(f"{name}/topic", p, qos, False) for p in payloads] == [listener.take() for _ in payloads]


def test_the_lower_qos_of_publish_and_subscription_counts(
    program: Program, listen: Listen, port: int, name: str
) -> None:
    """A subscriber would get a QoS that it did not ask for [MQTT-3.8.4-8]."""
    modest, demanding = listen(name, 0), listen(name, 2)

    program.publish(port, name, [b"x"], 1)

    assert (0, 1) == (modest.take().qos, demanding.take().qos)


def test_a_retained_message_waits_for_the_subscriber(program: Program, listen: Listen, port: int, name: str) -> None:
    """A retained message would be lost, kept after its successor, or shown as a fresh one."""
    program.publish(port, name, [b"first"], 1, retain=True)
    program.publish(port, name, [b"second"], 1, retain=True)

    assert Received(name, b"second", 1, True) == listen(name, 1).take()


def test_an_empty_payload_clears_the_retained_message(program: Program, listen: Listen, port: int, name: str) -> None:
    """A retained message could not be removed [MQTT-3.3.1-6]."""
    program.publish(port, name, [b"old"], 1, retain=True)
    program.publish(port, name, [b""], 1, retain=True)
    listener = listen(name, 1)

    program.publish(port, name, [b"new"], 1)

    assert Received(name, b"new", 1, False) == listener.take()


def test_the_will_of_a_client_that_dies_is_published(listen: Listen, name: str) -> None:
    """Nobody would learn that a client has died."""
    heir = listen(f"{name}/will", 1)
    mortal = listen(f"{name}/other", will=LastWords(f"{name}/will", b"gone"))

    mortal.die()

    assert b"gone" == heir.take().payload


# On 5.0 a mosquitto_sub that is told to stop asks for its will with 0x04; test_wills.py has that case.
@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "mosquitto-5.0"], indirect=True)
def test_the_will_of_a_client_that_leaves_is_not(program: Program, listen: Listen, port: int, name: str) -> None:
    """A client that said good-bye would be reported dead [MQTT-3.1.2-10]."""
    heir = listen(f"{name}/will", 1)
    polite = listen(f"{name}/other", will=LastWords(f"{name}/will", b"gone"))
    polite.leave()

    program.publish(port, f"{name}/will", [b"still here"], 1)

    assert b"still here" == heir.take().payload


def test_a_kept_session_gets_what_came_while_it_was_away(
    program: Program, listen: Listen, port: int, name: str
) -> None:
    """A client that was away would lose QoS 1 and 2 messages, or get them out of order."""
    listen(f"{name}/#", 2, session=name).leave()
    payloads = [b"%d" % n for n in range(20)]
    program.publish(port, f"{name}/one", payloads, 1)
    program.publish(port, f"{name}/two", payloads, 2)

    back = listen(f"{name}/#", 2, session=name)

    expected = [Received(f"{name}/one", p, 1, False) for p in payloads]
    expected += [Received(f"{name}/two", p, 2, False) for p in payloads]
    assert expected == [back.take() for _ in expected]


@pytest.mark.parametrize("members", [2, 3])
def test_a_shared_subscription_shares(program: Program, listen: Listen, port: int, name: str, members: int) -> None:
    """Members of a group would get copies, or one of them everything."""
    group = [listen(f"$share/group/{name}/+", 1) for _ in range(members)]
    payloads = [b"%d" % n for n in range(60)]

    program.publish(port, f"{name}/x", payloads, 1)

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
