# The reasons for which the reactor does not read a stream: one bit each, so that a set of them is one int.
#
# A part of the broker that needs a stream to wait calls `reactor.pause(stream, reason)`, and `reactor.resume(stream,
# reason)` when that reason is over. The stream is read and served again when the set is empty, so no part lifts the
# pause of another. It is a set and not a counter: pausing twice for one reason is the same as pausing once.
# `PauseReason` (broker/reasons.py) is finer and is what metrics count: it names the limit that throttles a client, and
# also covers clients that are read but not sent more.
from typing import Final


class Pause:
    HANDSHAKE: Final = 1  # a step of the TLS handshake is done by another thread
    UPGRADE: Final = 2  # the HTTP request for a WebSocket is not answered yet
    CONNECT: Final = 4  # CONNECT waits for its turn, for the check of its password, or for its session
    OVERLOAD: Final = 8  # a packet waits for a gate, for credits, or for a quota
    FANOUT: Final = 16  # the last publish has not reached all of its receivers yet
    SUBSCRIBE: Final = 32  # the other workers have not confirmed a subscription yet
    REPLIES: Final = 64  # the client does not read the replies that it has caused
    ANSWERS: Final = 128  # too many publishes of the client wait for receivers that are not done with them
    STORE: Final = 256  # what the client has subscribed to is not stored yet
    LOG: Final = 512  # the log takes no more for now: of the lane of a worker, in the carrier


LABELS: Final = {
    Pause.HANDSHAKE: "handshake",
    Pause.UPGRADE: "upgrade",
    Pause.CONNECT: "connect",
    Pause.OVERLOAD: "overload",
    Pause.FANOUT: "fanout",
    Pause.SUBSCRIBE: "subscribe",
    Pause.REPLIES: "replies",
    Pause.ANSWERS: "answers",
    Pause.STORE: "store",
    Pause.LOG: "log",
}


def labels_of(paused: int) -> list[str]:
    """The labels of all reasons in the set *paused*."""
    return [label for reason, label in LABELS.items() if paused & reason]
