# What happened in one run, as the clients saw it: events in one order, that of the one thread that saw them all.
#
# A message is known by its publisher and its number there; numbers rise in the order of sending. An operation that was
# never answered has no `Answered`: nobody knows what became of it, and nobody is owed anything for it.
from dataclasses import dataclass
from typing import Final

Message = tuple[str, int]  # publisher, its number

NO_SUBSCRIBERS: Final = 0x10  # in PUBACK and PUBREC
ERROR: Final = 0x80  # this reason code and greater ones


@dataclass(frozen=True, slots=True)
class Event:
    at: float  # seconds since the run began
    client: str


@dataclass(frozen=True, slots=True)
class Connecting(Event):
    clean: bool  # CONNECT asks for a clean start
    application: bool = False  # the client is of the kind APPLICATION
    mqtt_5: bool = True  # else MQTT 3.1.1
    lasting: bool = True  # its session outlives the connection
    port: int = 0  # that it connects to


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """CONNACK of success."""

    present: bool


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """CONNACK of an error, or the end of a connection that has had no CONNACK."""

    code: int | None  # of CONNACK; None: there was none


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The connection has ended, by whomever, or another one of the client has taken its place."""


@dataclass(frozen=True, slots=True)
class Subscribed(Event):
    """SUBACK."""

    filter: str
    qos: int = 1


@dataclass(frozen=True, slots=True)
class Sent(Event):
    """PUBLISH of the client. The first one of a number begins the operation; further ones have DUP."""

    number: int
    topic: str
    retain: bool = False
    deletes: bool = False  # a retained message: the payload is empty
    expiry: int = 0  # of the message, in seconds; 0: none
    qos: int = 1  # with 0 it is never answered


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """PUBACK or PUBREC to the client."""

    number: int
    code: int = 0


@dataclass(frozen=True, slots=True)
class Received(Event):
    """PUBLISH to the client."""

    message: Message
    topic: str
    qos: int
    packet_id: int
    dup: bool = False
    expiry: int | None = None  # the seconds that are left of it; None: it has none


@dataclass(frozen=True, slots=True)
class Acknowledged(Event):
    """PUBACK of the client."""

    packet_id: int


@dataclass(frozen=True, slots=True)
class Released(Event):
    """PUBREL to the client, which answers with PUBCOMP and forgets the packet id."""

    packet_id: int


@dataclass(frozen=True, slots=True)
class Stray(Event):
    """An answer to nothing that the client has sent on this connection."""

    what: str


@dataclass(frozen=True, slots=True)
class Late(Event):
    """A connection got *what*, after another one of its client had its CONNACK.

    *answers*: the number of the publish that it answers with success; None: it answers none.
    """

    what: str
    answers: int | None = None
    message: Message | None = None  # that it got
    port: int = 0  # of the connection


@dataclass(frozen=True, slots=True)
class Died(Event):
    """The client is gone without a DISCONNECT, for ever: its will is due, as its message 1."""

    topic: str


@dataclass(frozen=True, slots=True)
class Kept(Event):
    """A new subscriber found the message *number* retained on *topic*; None: none."""

    topic: str
    number: int | None


@dataclass(frozen=True, slots=True)
class Rollback(Event):
    """A loss of power that the class of durability does not cover: what happened after *since* may be undone."""

    since: float


@dataclass(frozen=True, slots=True)
class Fault(Event):
    what: str


def matches(filter: str, topic: str) -> bool:
    """Whether *topic* is one of *filter*: by the words of the specification (4.7), not by Weir's code."""
    levels = topic.split("/")
    for number, level in enumerate(filter.split("/")):
        if level == "#":
            return True
        if number >= len(levels) or level not in ("+", levels[number]):
            return False
    return len(filter.split("/")) == len(levels)


def concerns(event: Event, message: Message | None) -> bool:
    """Whether *event* belongs to the story of *message*; all faults do."""
    if isinstance(event, Fault | Rollback):
        return True
    if isinstance(event, Received):
        return event.message == message
    return (isinstance(event, Sent | Answered) and (event.client, event.number) == message) or (
        message is not None and isinstance(event, Died) and event.client == message[0]
    )
