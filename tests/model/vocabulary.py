# What clients say in a conversation: few names and topics, so that they meet often.
from dataclasses import dataclass, field

from hypothesis import strategies as st

from broker.mqtt.packets import V5, V31, V311, Properties, Wanted
from broker.mqtt.properties import CONTENT_TYPE, CORRELATION_DATA, RESPONSE_TOPIC, USER_PROPERTY
from tests.model.sessions import FOREVER

WINDOW = 4  # messages that may be unacknowledged: few, so that they often are

NAMES = ["anna", "bert", "cleo", "dora"]
TOPICS = [b"a", b"a/b", b"a/c", b"b", b"$a/b"]
SHARED = [b"$share/g/a/b", b"$share/h/a/b", b"$share/g/a/+", b"$share/g/will/#"]
FILTERS = [*TOPICS, b"+", b"#", b"a/+", b"+/b", b"a/#", b"$a/#", b"will/+", *SHARED]
UNSHARED = [b"b", b"$a/b"]  # nobody shares these: an empty payload cannot be told from another one

places = st.integers(0, 5)  # which of the workers a CONNECT comes to, modulo their number
qualities = st.sampled_from([0, 1, 1, 2, 2])  # more of those that may wait
lifetimes = st.sampled_from([FOREVER, 10, 20])
properties = st.sampled_from(
    [
        {},
        {},
        {USER_PROPERTY: [("k", "1"), ("k", "2")], CONTENT_TYPE: "text"},
        {RESPONSE_TOPIC: "a/c", CORRELATION_DATA: b"\0\1"},
    ]
)
wanted = st.builds(Wanted, st.sampled_from(FILTERS), qualities, st.booleans(), st.booleans(), st.integers(0, 2))


@dataclass
class Said:
    """A PUBLISH to make; what the client's version does not know is left out."""

    topic: bytes
    qos: int
    retain: bool = False
    empty: bool = False
    again: bool = False  # QoS 1: marked as a duplicate, which is nothing to its receivers [MQTT-3.3.1-3]
    alias: int = 0  # 0 = none
    lifetime: int = FOREVER
    properties: Properties = field(default_factory=dict)


publishes = st.builds(
    Said,
    st.sampled_from(TOPICS),
    qualities,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
    lifetimes,
    properties,
)


@dataclass
class Parting:
    """A will, without its topic, which is the client's own."""

    qos: int
    retain: bool
    delay: int
    lifetime: int
    properties: Properties


partings = st.builds(Parting, qualities, st.booleans(), st.sampled_from([0, 10, 20]), lifetimes, properties)


@dataclass
class Asked:
    """A CONNECT to make; what the version does not know is left out."""

    version: int = V5
    expiry: int = 0
    window: int = WINDOW
    aliases: int = 0
    parting: Parting | None = None
    prompt: bool = True  # acknowledges at once


askings = st.builds(
    Asked,
    st.sampled_from([V31, V311, V5, V5]),
    st.sampled_from([0, 20, 40]),
    st.sampled_from([1, 1, 2, WINDOW]),
    st.integers(0, 2),
    st.none() | partings,
    st.booleans(),
)

arrivals = st.lists(st.tuples(askings, st.lists(wanted, max_size=3), places), max_size=len(NAMES))

# What several say while something else happens: each the number of a speaker, a topic and a QoS.
talk = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(TOPICS), qualities), min_size=1, max_size=6)
