# A subscriber: acknowledges messages, measures their latency, and detects missing and duplicate messages.
from typing import Final, Protocol

from broker.mqtt.encode import encode
from broker.mqtt.fields import read_length
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    ConnAck,
    Connect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from cli.load.client import STAMP, SUBSCRIBING, UP, WRAP, Client, Refused
from cli.load.histogram import Histogram

SUBSCRIPTION: Final = 1  # the packet id of the only SUBSCRIBE
MISSING: Final = 100_000  # skipped numbers that are remembered; later ones, if they arrive, count as duplicates


class Deliveries(Protocol):
    """Receives the deliveries of subscribers."""

    def delivered(self, publisher: int, count: int, now: int) -> None:
        """*count* messages of *publisher* (its number in the whole load) arrived at *now* (us)."""

    def duplicated(self) -> None:
        """One of these messages is a duplicate."""


class Subscriber(Client):
    """Subscribes to one filter; acknowledges and measures messages."""

    def __init__(
        self,
        connect: Connect,
        filter: bytes,
        qos: int,
        run: bytes,
        latencies: Histogram,
        deliveries: Deliveries,
    ) -> None:
        super().__init__(connect)
        self.filter = filter
        self.qos = qos
        self.disordered = 0
        self.foreign = 0  # messages of other programs or another run
        self.latest = 0  # time of the last message (us)
        self._run = run
        self._latencies = latencies
        self._deliveries = deliveries
        self._next: dict[int, int] = {}  # by publisher: the expected sequence number
        self._missing: set[tuple[int, int]] = set()  # skipped (publisher, sequence)

    def established(self, answer: ConnAck) -> None:
        self.state = SUBSCRIBING
        self.out.append(encode(Subscribe(SUBSCRIPTION, [Wanted(self.filter, self.qos)]), self.version))

    def take_run(self, data: bytes, position: int, end: int, now: int) -> int:
        """Process PUBLISH without properties, and PUBREL."""
        five = self.version == V5
        run = self._run
        acknowledged: list[bytes] = []
        publisher = -1
        expected = 0
        time = -1
        count = 0  # messages of *publisher* with *time*
        stamp = b""  # the first ten bytes of their stamp: run, publisher, and the upper half of the sequence number
        when = b""
        level = 0
        high = 0
        while position + 4 <= end:
            first = data[position]
            length = data[position + 1]
            body = position + 2
            if first == 0x62 and length == 2:
                self.out.append(b"\x70\x02" + data[body : body + 2])
                position += 4
                continue
            if first >> 4 != 3:
                break
            if length > 127:
                length, body = read_length(data, position + 1, end, self.version)
                if length < 0:
                    break
            stop = body + length
            if stop > end or length < 2:
                break
            at = body + 2 + (data[body] << 8 | data[body + 1])
            qos = first >> 1 & 3
            identifier = at
            if qos:
                at += 2
            if five:
                if at >= stop or data[at]:
                    break
                at += 1
            if at + STAMP > stop:
                break
            if data[at : at + 10] != stamp or data[at + 12 : at + 16] != when:
                if data[at : at + 4] != run:
                    break
                if count:
                    self._measured(publisher, count, time, now)
                    count = 0
                stamp = data[at : at + 10]
                when = data[at + 12 : at + 16]
                time = when[0] << 24 | when[1] << 16 | when[2] << 8 | when[3]
                high = stamp[8] << 24 | stamp[9] << 16
                sender = stamp[4] << 24 | stamp[5] << 16 | stamp[6] << 8 | stamp[7]
                if sender != publisher:
                    if publisher >= 0:
                        self._next[publisher] = expected
                    publisher = sender
                    expected = self._next.get(sender, 0)
            position = stop
            if qos:
                acknowledged.append(data[identifier : identifier + 2])
                level = qos
            sequence = high | data[at + 10] << 8 | data[at + 11]
            count += 1
            if sequence == expected:
                expected = sequence + 1 & WRAP
            else:
                expected = self._irregular(publisher, sequence, expected)
        if count:
            self._measured(publisher, count, time, now)
            self._next[publisher] = expected
        if acknowledged:
            start = b"\x40\x02" if level == 1 else b"\x50\x02"
            self.out.append(start + start.join(acknowledged))
        return position

    def take_other(self, packet: Packet, now: int) -> None:
        if isinstance(packet, SubAck):
            if packet.codes[0] >= 0x80:
                raise Refused("SUBACK", packet.codes[0])
            self.state = UP
        elif isinstance(packet, Publish):
            self._take_publish(packet, now)
        elif isinstance(packet, Ack) and packet.kind == PUBREL:
            self.out.append(encode(Ack(PUBCOMP, packet.packet_id), self.version))

    def _take_publish(self, packet: Publish, now: int) -> None:
        """Process a message with properties or of another program."""
        if packet.qos:
            self.out.append(encode(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id), self.version))
        payload = packet.payload
        if len(payload) < STAMP or payload[:4] != self._run:
            self.foreign += 1
            return
        publisher = int.from_bytes(payload[4:8], "big")
        sequence = int.from_bytes(payload[8:12], "big")
        expected = self._next.get(publisher, 0)
        if sequence == expected:
            self._next[publisher] = sequence + 1 & WRAP
        else:
            self._next[publisher] = self._irregular(publisher, sequence, expected)
        self._measured(publisher, 1, int.from_bytes(payload[12:16], "big"), now)

    def _measured(self, publisher: int, count: int, time: int, now: int) -> None:
        """Count *count* messages with the intended send time *time* (us modulo 2**32)."""
        latency = now - time & WRAP
        if latency > WRAP >> 1:
            latency = 0  # the intended time is in the future: the message is early
        self._latencies.add(latency, count)
        self.latest = now
        self._deliveries.delivered(publisher, count, now)

    def _irregular(self, publisher: int, sequence: int, expected: int) -> int:
        """Handle an unexpected sequence number; return the next expected one."""
        ahead = sequence - expected & WRAP
        if ahead <= WRAP >> 1:
            for missing in range(expected, expected + min(ahead, MISSING - len(self._missing))):
                self._missing.add((publisher, missing & WRAP))
            return sequence + 1 & WRAP
        if (publisher, sequence) in self._missing:
            self._missing.remove((publisher, sequence))
            self.disordered += 1
        else:
            self._deliveries.duplicated()
        return expected
