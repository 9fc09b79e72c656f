# A message on its way to its receivers, which all share it.
#
# One publish becomes one Message for each (QoS, retain flag, subscription identifiers) that its receivers need, usually
# just one. A Message has its own encoding for both wire formats (3.x and 5.0), made when the first receiver needs it;
# the packets of two receivers differ only in the two bytes of the packet id. So a Message in a window or in a queue is
# one reference, whatever the number of its receivers.
import zlib
from typing import Final

from broker.delivery.completion import Completion
from broker.mqtt.fields import encode_length, read_length
from broker.mqtt.packets import V5
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, TOPIC_ALIAS

DUP: Final = 0x08
NO_PROPERTIES: Final = b"\x00"  # the section of a PUBLISH 5.0 that has none
NEVER: Final = 0.0
# Seconds by which a worker may take a message for younger than it is: it was held up since it has read its clock, or
# the clocks of two nodes differ. More would give it a second more than it was published with.
EARLY: Final = 0.1
LONGEST: Final = 0xFFFFFFFF  # seconds: the message expiry interval is a Four Byte Integer


def marked(packet: bytes) -> bytes:
    """The PUBLISH *packet*, marked as a duplicate [MQTT-3.3.1-1]."""
    return bytes((packet[0] | DUP,)) + packet[1:]


class _Head:
    """The head that was made last: messages of a queue that is read often have the same."""

    def __init__(self) -> None:
        self.topic = b""
        self.first = 0
        self.length = 0
        self.head = b""


LAST_HEAD: Final = _Head()


class Message:
    """One variant of a published message.

    *properties* is the encoded property section without its length and without the message expiry: user properties
    and others as they were received, then the subscription identifiers of the receiver. *expires* is a time of the
    worker's monotonic clock in seconds, NEVER if the message has no expiry. *ends* is the time from which no queue
    keeps it: its own expiry, or the time that queues keep messages, whichever is first.
    """

    def __init__(self, topic: bytes, payload: bytes, qos: int, retain: bool, properties: bytes, expires: float) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires = expires
        self.ends = expires
        self.size = len(topic) + len(payload) + len(properties)  # bytes of the message, whatever its encoding
        self.holders = 0  # queues and windows that it is in: kept by the MessageBudget of the worker
        self.completion: Completion | None = None  # of what was published: made by its first receiver that needs time
        self.original: Message | None = None  # of a variant: the message as it was published
        self.head3 = b""  # fixed header and topic, as made when needed or as received
        self.head5 = b""
        self._section = NO_PROPERTIES if not properties and expires == NEVER else b""
        self._left = 0  # the remaining seconds that are written in the section
        self._whole3 = b""  # QoS 0: the whole packet
        self._whole5 = b""

    def expired(self, now: float) -> bool:
        """Whether the message has ended: its message expiry interval [MQTT-3.3.2-5], or its time in queues."""
        return self.ends != NEVER and now >= self.ends

    def end_by(self, latest: float) -> float:
        """Have no queue keep the message beyond *latest*; returns when it ends."""
        ends = self.ends
        if ends == NEVER or latest < ends:
            ends = self.ends = latest
        return ends

    def variant(self, qos: int, retain: bool, identifiers: bytes) -> "Message":
        """A variant for receivers with another QoS, retain flag or subscription identifiers."""
        variant = Message(self.topic, self.payload, qos, retain, self.properties + identifiers, self.expires)
        variant.original = self if self.original is None else self.original
        return variant

    def as_published(self) -> "Message":
        """The message that this one is a variant of; itself if it is none."""
        return self if self.original is None else self.original

    def hold(self) -> Completion:
        """Count one more receiver that is not done with the published message; it has to settle the Completion once.

        To be called while the receiver is offered the message: later the publish may have been acknowledged.
        """
        published = self if self.original is None else self.original
        completion = published.completion
        if completion is None:
            completion = published.completion = Completion()
        completion.pending += 1
        return completion

    def is_wide(self, receivers: int) -> bool:
        """Whether at least so many *receivers* hold the published message."""
        completion = self.completion if self.original is None else self.original.completion
        return completion is not None and completion.pending >= receivers

    def settle(self, now: float) -> None:
        """Count one receiver that held it as done."""
        completion = self.as_published().completion
        if completion is not None:
            completion.settle(now)

    def whole(self, version: int, now: float) -> bytes:
        """The packet for any receiver at QoS 0, without an id [MQTT-2.2.1-2] and never a duplicate [MQTT-4.3.1-1]."""
        if version == V5:
            if self.expires != NEVER:
                section = self._section_at(now)
                return b"%b%b%b" % (self._head(V5), section, self.payload)
            if not self._whole5:
                section = self._section_at(now)
                self._whole5 = b"%b%b%b" % (self._head(V5), section, self.payload)
            return self._whole5
        if not self._whole3:
            self._whole3 = b"%b%b" % (self._head(version), self.payload)
        return self._whole3

    def packet(self, version: int, packet_id: int, now: float) -> bytes:
        """The packet for one receiver at QoS 1 or 2, for the first time [MQTT-4.3.2-2], [MQTT-4.3.3-2]."""
        identifier = packet_id.to_bytes(2, "big")
        if version == V5:
            section = self._section
            if not section or self.expires != NEVER:
                section = self._section_at(now)
            head = self.head5
            if not head:
                head = self._head(V5)
            return b"%b%b%b%b" % (head, identifier, section, self.payload)
        head = self.head3
        if not head:
            head = self._head(version)
        return b"%b%b%b" % (head, identifier, self.payload)

    def again(self, version: int, packet_id: int, now: float) -> bytes:
        """The packet to send again on a new connection, marked as a duplicate [MQTT-3.3.1-1].

        Its QoS is never 0 [MQTT-3.3.1-2].
        """
        return marked(self.packet(version, packet_id, now))

    def aliased(self, topic: bytes, alias: int, packet_id: int, now: float) -> bytes:
        """The 5.0 packet for one receiver with a topic alias: *topic* sets the alias, an empty topic uses it."""
        section = self._section_at(now)
        _, start = read_length(section, 0, len(section), V5)
        inside = bytes((TOPIC_ALIAS,)) + alias.to_bytes(2, "big") + section[start:]
        variable = len(topic).to_bytes(2, "big") + topic + (packet_id.to_bytes(2, "big") if self.qos else b"")
        body = variable + encode_length(len(inside)) + inside
        first = 0x30 | self.qos << 1 | (1 if self.retain else 0)
        return bytes((first,)) + encode_length(len(body) + len(self.payload)) + body + self.payload

    def length(self, version: int, now: float) -> int:
        """The size of the packet in bytes, which the receiver's maximum packet size limits [MQTT-3.1.2-24]."""
        size = len(self._head(version)) + len(self.payload) + (2 if self.qos else 0)
        return size + len(self._section_at(now)) if version == V5 else size

    def _head(self, version: int) -> bytes:
        head = self.head5 if version == V5 else self.head3
        if head:
            return head
        topic = self.topic
        length = 2 + len(topic) + len(self.payload) + (2 if self.qos else 0)
        if version == V5:
            inside = len(self.properties) + (5 if self.expires != NEVER else 0)
            length += inside + len(encode_length(inside))
        first = 0x30 | self.qos << 1 | (1 if self.retain else 0)
        last = LAST_HEAD
        if last.topic is topic and last.length == length and last.first == first:
            head = last.head
        else:
            head = bytes((first,)) + encode_length(length) + len(topic).to_bytes(2, "big") + topic
            last.topic, last.length, last.first, last.head = topic, length, first, head
        if version == V5:
            self.head5 = head
        else:
            self.head3 = head
        return head

    def _section_at(self, now: float) -> bytes:
        """The property section, with the seconds to live that remain at *now* [MQTT-3.3.2-6]."""
        if self.expires == NEVER:
            if not self._section:
                self._section = encode_length(len(self.properties)) + self.properties
            return self._section
        # Rounded up: a message that did not wait keeps its expiry. At another worker *now* may be EARLY.
        rest = self.expires - now
        left = min(LONGEST, max(int(rest + 1.0 - EARLY), 1 if rest > 0.0 else 0))
        if not self._section or left != self._left:
            self._left = left
            expiry = bytes((MESSAGE_EXPIRY_INTERVAL,)) + left.to_bytes(4, "big")
            self._section = encode_length(len(self.properties) + 5) + expiry + self.properties
        return self._section


class GroupMessage(Message):
    """A variant for a durable session, which gets it through a shared subscription and may have to return it.

    *group*: the tag of that subscription, see `group_tag()`. *added*: how many bytes at the end of *properties* are
    subscription identifiers of the session.
    """

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes,
        expires: float,
        group: int,
        added: int,
    ) -> None:
        super().__init__(topic, payload, qos, retain, properties, expires)
        self.group = group
        self.added = added

    def for_other(self) -> Message:
        """A message for another member: it shares the bytes, and ends at the same time."""
        properties = self.properties[: len(self.properties) - self.added]
        other = Message(self.topic, self.payload, self.qos, self.retain, properties, self.expires)
        other.ends = self.ends
        return other


def group_tag(key: bytes) -> int:
    """What tells the shared subscriptions of one session apart, by their keys."""
    return zlib.crc32(key)


def group_variant(message: Message, qos: int, retain: bool, identifiers: bytes, group: int) -> GroupMessage:
    """A variant of *message* for a member of the shared subscription with the tag *group*."""
    properties = message.properties + identifiers
    expires = message.expires
    variant = GroupMessage(message.topic, message.payload, qos, retain, properties, expires, group, len(identifiers))
    variant.ends = message.ends
    variant.original = message.as_published()
    if qos == message.qos and retain == message.retain:
        variant.head3 = message.head3
        if not identifiers:
            variant.head5 = message.head5
    return variant


RELEASED: Final = Message(b"", b"", 2, False, b"", NEVER)  # stands in a window for a message after its PUBREC
RELEASED.holders = 1 << 60  # there is always another one: only its places in windows count in a budget
