# The states of a client's connection, and everything that changes them. A pair that is not in the table is illegal.
#
# `State` says how far MQTT has come on a connection. Below it, `Stream.state` (net/stream.py) says what becomes of the
# socket: it is OPEN in every state up to LIVE; in CLOSING the reactor alone takes it on to LINGERING and CLOSED, and
# tells the protocol nothing more. So both states here behind LIVE are final for the protocol.
#
# PUBLISH and its acknowledgements do not look into the table: the hub takes them where a connection has a session, and
# it has one in the state LIVE and in no other.
from enum import IntEnum
from typing import Final

from broker.mqtt.fields import protocol_error
from broker.reasons import CloseReason


class State(IntEnum):
    NEW = 0  # the client has not sent a CONNECT yet
    VALIDATING = 1  # CONNECT is decoded and compared with the limits
    WAITING_TURN = 2  # more clients connect than the worker can take in at once
    AUTHENTICATING = 3  # the authenticator finds out who the client is
    REFUSING = 4  # the password was wrong; the answer is delayed
    CLAIMING = 5  # the session store looks for the session, which may come from another worker
    LIVE = 6  # CONNACK was sent; the connection has a session
    CLOSING = 7  # the broker or DISCONNECT ended the connection; what was written before still leaves
    CLOSED = 8  # the client is gone


class Input(IntEnum):
    # Packets from the client.
    CONNECT = 0
    AUTH = 1
    PACKET = 2  # any other
    DISCONNECT = 3
    # What the steps of a CONNECT come to.
    NO_TURN = 4
    TURN = 5
    BAD_CREDENTIALS = 6
    AUTHENTICATED = 7
    SESSION_FOUND = 8
    # Ends.
    REFUSE = 9  # the answer to CONNECT is a refusal
    CLOSE = 10
    PEER_GONE = 11


TRANSITIONS: Final = {
    (State.NEW, Input.CONNECT): State.VALIDATING,
    (State.NEW, Input.REFUSE): State.CLOSING,
    (State.NEW, Input.CLOSE): State.CLOSING,
    (State.NEW, Input.PEER_GONE): State.CLOSED,
    (State.VALIDATING, Input.NO_TURN): State.WAITING_TURN,
    (State.VALIDATING, Input.TURN): State.AUTHENTICATING,
    (State.VALIDATING, Input.REFUSE): State.CLOSING,
    (State.VALIDATING, Input.CLOSE): State.CLOSING,
    (State.VALIDATING, Input.PEER_GONE): State.CLOSED,
    (State.WAITING_TURN, Input.TURN): State.AUTHENTICATING,
    (State.WAITING_TURN, Input.REFUSE): State.CLOSING,
    (State.WAITING_TURN, Input.CLOSE): State.CLOSING,
    (State.WAITING_TURN, Input.PEER_GONE): State.CLOSED,
    (State.AUTHENTICATING, Input.AUTH): State.AUTHENTICATING,  # enhanced authentication takes several rounds
    (State.AUTHENTICATING, Input.BAD_CREDENTIALS): State.REFUSING,
    (State.AUTHENTICATING, Input.AUTHENTICATED): State.CLAIMING,
    (State.AUTHENTICATING, Input.REFUSE): State.CLOSING,
    (State.AUTHENTICATING, Input.CLOSE): State.CLOSING,
    (State.AUTHENTICATING, Input.PEER_GONE): State.CLOSED,
    (State.REFUSING, Input.REFUSE): State.CLOSING,
    (State.REFUSING, Input.CLOSE): State.CLOSING,
    (State.REFUSING, Input.PEER_GONE): State.CLOSED,
    (State.CLAIMING, Input.SESSION_FOUND): State.LIVE,
    (State.CLAIMING, Input.REFUSE): State.CLOSING,
    (State.CLAIMING, Input.CLOSE): State.CLOSING,
    (State.CLAIMING, Input.PEER_GONE): State.CLOSED,
    (State.LIVE, Input.PACKET): State.LIVE,
    (State.LIVE, Input.DISCONNECT): State.CLOSING,
    (State.LIVE, Input.CLOSE): State.CLOSING,
    (State.LIVE, Input.PEER_GONE): State.CLOSED,
}

# Each state that waits for something has a deadline; this is the reason for which the connection ends when it passes.
DEADLINES: Final = {
    State.NEW: CloseReason.CONNECT_TIMEOUT,
    State.WAITING_TURN: CloseReason.CONNECTS_WAITING,
    State.AUTHENTICATING: CloseReason.CONNECT_TIMEOUT,
    State.REFUSING: CloseReason.BAD_CREDENTIALS,
    State.CLAIMING: CloseReason.CONNECT_TIMEOUT,
    State.LIVE: CloseReason.KEEP_ALIVE_TIMEOUT,
}


class IllegalStep(Exception):
    """The broker, and not the client, did something that the table does not have: a bug in Weir."""


def step(state: State, event: Input) -> State:
    """The state after *event*. ProtocolError: the client sent a packet that it must not send in *state*."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        words = f"{event.name} in the state {state.name}"
        if event <= Input.DISCONNECT:
            raise protocol_error(words)  # [MQTT-3.1.0-2], [MQTT-4.12.1-2]
        raise IllegalStep(words)
    return following


def as_markdown() -> str:
    """The table for broker/README.md, one row for each state."""
    lines = ["| state | what changes it | deadline: reason |", "|---|---|---|"]
    for state in State:
        changes = [
            f"{event.name} → {following.name}" for (before, event), following in TRANSITIONS.items() if before == state
        ]
        deadline = DEADLINES.get(state)
        lines.append(f"| {state.name} | {', '.join(changes)} | {'' if deadline is None else f'`{deadline.label}`'} |")
    return "\n".join(lines)
