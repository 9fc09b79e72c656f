# The table of the states of a connection.
from collections.abc import Callable
from itertools import product

import pytest

from broker.mqtt.packets import V5, V311, Connect, Disconnect, PingReq, Subscribe, Wanted
from broker.mqtt.properties import AUTHENTICATION_METHOD
from broker.protocol.connection import Connection
from broker.protocol.states import DEADLINES, TRANSITIONS, IllegalStep, Input, State, as_markdown, step
from broker.reasons import CloseReason, ProtocolError
from tests.inprocess import Broker, Client
from tests.protocol.state_table import README, block

Brokers = Callable[..., Broker]

PACKETS = (Input.CONNECT, Input.AUTH, Input.PACKET, Input.DISCONNECT)
FINAL = (State.CLOSING, State.CLOSED)
CONNECTING = (State.VALIDATING, State.WAITING_TURN, State.AUTHENTICATING, State.REFUSING, State.CLAIMING)


@pytest.mark.parametrize(("state", "event"), list(product(State, Input)), ids=lambda one: one.name)
def test_every_pair_of_state_and_input(state: State, event: Input) -> None:
    """A pair that is not in the table would do something, or cost the client what is a mistake of the broker."""
    following = TRANSITIONS.get((state, event))
    if following is not None:
        assert following is step(state, event)
        return
    with pytest.raises(ProtocolError if event in PACKETS else IllegalStep, match=f"{event.name} .*{state.name}"):
        step(state, event)


def test_a_connection_can_end_in_every_state_and_only_once() -> None:
    """A client that goes, or has to go, would keep its descriptor, or be counted twice."""
    for state in State:
        ends = {event: TRANSITIONS.get((state, event)) for event in (Input.CLOSE, Input.PEER_GONE)}
        if state in FINAL:
            assert not any(before is state for before, _ in TRANSITIONS)
        else:
            assert {Input.CLOSE: State.CLOSING, Input.PEER_GONE: State.CLOSED} == ends


def test_connack_is_sent_once() -> None:
    """A client with a session would get a second CONNACK [MQTT-3.2.0-2], or a session without having been claimed."""
    assert {before for before, event in TRANSITIONS if event is Input.REFUSE} == {State.NEW, *CONNECTING}
    assert [State.CLAIMING] == [pair[0] for pair, after in TRANSITIONS.items() if after is State.LIVE != pair[0]]


def test_every_state_can_be_reached() -> None:
    """A row of the table would be about nothing."""
    reached = {State.NEW}
    for _ in State:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}

    assert set(State) == reached


def test_every_state_that_waits_has_a_deadline() -> None:
    """A client that never goes on would keep its place for ever."""
    assert set(State) - {State.VALIDATING, *FINAL} == set(DEADLINES)


def test_the_readme_shows_the_table() -> None:
    """Contributors would read how it was: write it with `python -m tests.protocol.state_table`."""
    assert f"\n{as_markdown()}\n" == block(README.read_text())


def state_of(client: Client) -> State:
    (stream,) = client.broker.streams()
    assert isinstance(stream, Connection)
    return stream.protocol_state


@pytest.mark.parametrize("version", [V311, V5])
def test_a_connection_goes_through_the_table(brokers: Brokers, version: int) -> None:
    """The code would go its own way beside the table."""
    broker = brokers()
    client = broker.open(version)
    broker.settle()
    assert State.NEW is state_of(client)
    client.send(Connect(version, "me"))
    client.receive()
    assert State.LIVE is state_of(client)
    client.send(PingReq(), Subscribe(1, [Wanted(b"a")]))
    client.receive()
    assert State.LIVE is state_of(client)
    (stream,) = broker.streams()
    client.send(Disconnect())
    client.receive()

    assert isinstance(stream, Connection)
    assert (State.CLOSING, None) == (stream.protocol_state, stream.session)


def test_a_refused_connection_has_no_attempt_left(brokers: Brokers) -> None:
    """The attempt and its connection would keep each other, and the collector is off."""
    broker = brokers()
    client = broker.open(V5)
    broker.settle()
    (stream,) = broker.streams()
    client.send(Connect(V5, "me", properties={AUTHENTICATION_METHOD: "one we do not have"}))
    client.receive()

    assert isinstance(stream, Connection)
    assert (State.CLOSING, None) == (stream.protocol_state, stream.attempt)
    assert 1 == broker.counters.closed_by_reason[CloseReason.BAD_AUTHENTICATION_METHOD.label]
