# A gap: messages that a client should have got and never will, of which it has not been told.
#
# A session has counts of all messages that it did not deliver (losses.py); a gap is made of them when the client is
# told, or when it is to be stored or moved. Its size is bounded by the number of reasons, of topics and of their bytes.
import json
from typing import Final

import msgpack

from broker.mqtt.fields import read_length
from broker.mqtt.packets import V5
from broker.mqtt.properties import USER_PROPERTY, encode_properties
from broker.reasons import DropReason

# What is a loss for a subscriber: the message matched a subscription and was to be delivered, the broker gave it up,
# and the client cannot know. The other reasons are none:
# - OFFLINE_QOS0: a client knows that it was away, and QoS 0 does not reach one that is;
# - SESSION_ENDED: the next CONNACK says that no session was present;
# - MAY_NOT_READ: the client must not even learn that there was something;
# - NO_SHARED_MEMBER: no member of the group is owed the message more than any other;
# - NOT_AUTHORIZED, GATE_TIMEOUT, RETAINED_... and quotas of what is published concern the publisher.
# SHARED_FULL is counted for one member, which kept the group waiting, and so says that the group has lost something.
LOSSES: Final = frozenset(
    reason.label
    for reason in (
        DropReason.NOT_WRITABLE,
        DropReason.PENDING_FULL,
        DropReason.QUEUE_FULL,
        DropReason.MESSAGE_BUDGET,
        DropReason.SHARED_FULL,
        DropReason.EXPIRED,
        DropReason.TOO_LARGE,
        DropReason.PURGED,
        DropReason.PACK_TIMEOUT,
        DropReason.RETENTION_EXPIRED,
        DropReason.LOG_DAMAGED,
        DropReason.LOG_REFUSED,
        DropReason.QUOTA_SESSION_OUTGOING,
        DropReason.QUOTA_TENANT_OUTGOING,
        DropReason.QUOTA_CLUSTER_OUTGOING,
    )
)

FORM: Final = 1  # of what `pack()` returns
TOPICS: Final = 8  # that a gap names at most
TOPIC_BYTES: Final = 256  # of all topics that it names
REASONS: Final = 32  # that are read: more than a version will ever have
LABEL: Final = 64  # characters of a reason that is read

ASKED: Final = "weir-gap"  # the user property of CONNECT by which a client asks for the others
COUNT: Final = "weir-gap-count"
REASON: Final = "weir-gap-reason"
FIRST: Final = "weir-gap-first"
LAST: Final = "weir-gap-last"


class Gap:
    """*counts*: messages by the label of a DropReason. *first*, *last*: Unix time in ms of the first and the last loss.

    *topics*: all topics of the messages; None if there are too many, or not all are known.
    """

    def __init__(self, counts: dict[str, int], first: int, last: int, topics: list[bytes] | None) -> None:
        self.counts = counts
        self.first = first
        self.last = last
        self.topics = topics

    def total(self) -> int:
        return sum(self.counts.values())

    def with_later(self, later: "Gap") -> "Gap":
        """This gap and *later* as one."""
        counts = dict(self.counts)
        for label, count in later.counts.items():
            counts[label] = counts.get(label, 0) + count
        topics: list[bytes] | None = None
        if self.topics is not None and later.topics is not None:
            topics = [*self.topics, *[topic for topic in later.topics if topic not in self.topics]]
            if len(topics) > TOPICS or sum([len(topic) for topic in topics]) > TOPIC_BYTES:
                topics = None
        return Gap(counts, min(self.first, later.first), max(self.last, later.last), topics)

    def json(self, with_topics: bool) -> bytes:
        """The payload of a notice."""
        facts: dict[str, object] = {"count": self.total(), "reasons": self.counts, "first": self.first}
        facts["last"] = self.last
        if with_topics and self.topics is not None:
            facts["topics"] = [topic.decode() for topic in self.topics]
        return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()

    def properties(self) -> bytes:
        """User properties for a PUBLISH, encoded without the length of the section; the most frequent reason first."""
        pairs = [(COUNT, str(self.total())), (FIRST, str(self.first)), (LAST, str(self.last))]
        for label in sorted(self.counts, key=lambda label: -self.counts[label]):
            pairs.append((REASON, label))
        section = encode_properties({USER_PROPERTY: list(pairs)})
        _, start = read_length(section, 0, len(section), V5)
        return section[start:]


class OwedGap:
    """What a session that is stored or moves brings: the gap, if any, and whether its client asked for properties."""

    def __init__(self, asked: bool, gap: Gap | None) -> None:
        self.asked = asked
        self.gap = gap

    def pack(self) -> bytes:
        """The same in bytes; b"" if there is nothing to remember."""
        gap = self.gap
        if gap is None and not self.asked:
            return b""
        fields = None if gap is None else (list(gap.counts.items()), gap.first, gap.last, gap.topics)
        packed = msgpack.packb((FORM, self.asked, fields))
        assert isinstance(packed, bytes)
        return packed


def unpack(data: bytes) -> OwedGap:
    """The OwedGap that was packed as *data*. ValueError: it is none."""
    if not data:
        return OwedGap(False, None)
    try:
        form, asked, fields = msgpack.unpackb(data)
        if form != FORM:
            raise ValueError(f"form {form!r}")
        return OwedGap(asked is True, None if fields is None else _gap_of(*fields))
    except Exception as error:  # msgpack has six kinds of it
        raise ValueError(f"a gap cannot be read: {error}") from error


def _gap_of(counts: object, first: object, last: object, topics: object) -> Gap:
    if not isinstance(counts, list) or not isinstance(first, int) or not isinstance(last, int):
        raise ValueError("a field of another type")
    if not 0 < len(counts) <= REASONS or first < 0 or last < first:
        raise ValueError("a value that is impossible")
    return Gap(dict([_count_of(*each) for each in counts]), first, last, None if topics is None else _topics_of(topics))


def _count_of(label: object, count: object) -> tuple[str, int]:
    if not isinstance(label, str) or len(label) > LABEL or not isinstance(count, int) or count < 1:
        raise ValueError("a count that is none")
    return label, count


def _topics_of(topics: object) -> list[bytes]:
    if not isinstance(topics, list) or len(topics) > TOPICS:
        raise ValueError("topics that are none")
    read: list[bytes] = []
    for topic in topics:
        if not isinstance(topic, bytes):
            raise ValueError("a topic that is none")
        topic.decode()
        read.append(topic)
    return read
