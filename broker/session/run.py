# A run: consecutive QoS 0 packets of one publisher to one topic.
#
# A fast publisher sends many packets between two reads. If they have no properties and no retain flag, a receiver of
# the same wire format is sent the received bytes as they are, and all receivers of the other format share one
# translation. So a burst of a hundred messages to five hundred receivers is five hundred appends, not fifty thousand.
from typing import Final

from broker.mqtt.fields import encode_length
from broker.mqtt.packets import V5
from broker.mqtt.scanner import read_header
from broker.session.message import NEVER, Message

GROWTH: Final = 5  # bytes that the translation adds to a packet at most, beside identifiers: lengths and a section
PART_MESSAGES: Final = 16  # of a part; by that an egress quota may be exceeded, and a send of so many is cheap
PART_BYTES: Final = 16 * 1024  # of a part, unless it is one message


class Run:
    """*count* complete PUBLISH packets of *version*, each with *topic* and a payload and nothing else."""

    # Of the class, as each publish makes a run, and few are kept.
    _kept: list[Message] | None = None
    _kept_identifiers: bytes = b""

    def __init__(
        self, packets: bytes, version: int, count: int, topic: bytes, payload_bytes: int, longest: int
    ) -> None:
        self.count = count
        self.topic = topic
        self.payload_bytes = payload_bytes
        self.longest = longest  # bytes of the largest packet
        self.version = version
        self._packets = packets
        self._is5 = version == V5
        self._other = b""
        self._identifiers = b""
        self._identified = b""
        self._payloads: list[bytes] | None = None
        self._parts: list[Run] | None = None

    def encoded(self, version: int, identifiers: bytes) -> bytes:
        """All packets in the format of *version*, in 5.0 each with subscription identifiers (encoded properties)."""
        if identifiers and version == V5:  # a session may have subscribed with 5.0 and be connected with 3.x
            if identifiers != self._identifiers:
                self._identifiers = identifiers
                self._identified = b"".join(self.split(version, identifiers))
            return self._identified
        if (version == V5) == self._is5:
            return self._packets
        if not self._other:
            self._other = b"".join(self.split(version, b""))
        return self._other

    def split(self, version: int, identifiers: bytes) -> list[bytes]:
        """The packets one by one, in the format of *version*, in 5.0 with *identifiers*."""
        topic = len(self.topic).to_bytes(2, "big") + self.topic
        section = encode_length(len(identifiers)) + identifiers if version == V5 else b""
        packets = []
        for payload in self.payloads():
            length = len(topic) + len(section) + len(payload)
            packets.append(b"%b%b%b%b%b" % (b"\x30", encode_length(length), topic, section, payload))
        return packets

    def parts(self) -> "list[Run]":
        """The run in pieces of at most PART_MESSAGES packets, and PART_BYTES bytes if a piece has several packets."""
        most = max(1, min(PART_MESSAGES, PART_BYTES // self.longest))
        if self.count <= most:
            return [self]
        if self._parts is None:
            self._parts = self._cut(most)
        return self._parts

    def _cut(self, most: int) -> "list[Run]":
        data, payloads = self._packets, self.payloads()
        parts = []
        position = 0
        for first in range(0, self.count, most):
            some = payloads[first : first + most]
            begin = position
            for _ in some:
                _, position = read_header(data, position, len(data), self.version)
            size = sum([len(payload) for payload in some])
            parts.append(Run(data[begin:position], self.version, len(some), self.topic, size, self.longest))
        return parts

    def messages(self, identifiers: bytes) -> list[Message]:
        """The packets as messages, for receivers that do not take the whole run."""
        return [Message(self.topic, payload, 0, False, identifiers, NEVER) for payload in self.payloads()]

    def kept_messages(self, identifiers: bytes) -> list[Message]:
        """The packets as messages for sessions that keep them, which share them if their *identifiers* are the same."""
        if self._kept is None or self._kept_identifiers != identifiers:
            self._kept, self._kept_identifiers = self.messages(identifiers), identifiers
        return self._kept

    def payloads(self) -> list[bytes]:
        """The payloads of all packets."""
        if self._payloads is not None:
            return self._payloads
        data = self._packets
        skip = 2 + len(self.topic) + (1 if self._is5 else 0)  # the topic with its length, and in 5.0 no properties
        payloads = []
        end = len(data)
        position = 0
        while position < end:
            body, stop = read_header(data, position, end, self.version)
            payloads.append(data[body + skip : stop])
            position = stop
        self._payloads = payloads
        return payloads
