# A publisher: writes stamped messages as fast as its window, its quota and the receive maximum of the broker allow.
from typing import Final, cast

from broker.mqtt.encode import encode
from broker.mqtt.fields import encode_binary, encode_length
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, Ack, ConnAck, Connect, Packet
from broker.mqtt.properties import RECEIVE_MAXIMUM
from cli.load.client import STAMP, UP, WRAP, Client

PACKET_IDS: Final = 65_535
UNACKNOWLEDGED: Final = 32_767  # at most, so that a packet id is free long before it is used again
TWO: Final = [number.to_bytes(2, "big") for number in range(1 << 16)]  # a table: conversion would cost more


class Publisher(Client):
    """Publishes stamped messages to one topic.

    *filler* is the payload after the stamp. *readers* subscribers receive each message. The window waits for *copies*
    of these deliveries, or for acknowledgements if *copies* is 0.
    """

    def __init__(
        self,
        connect: Connect,
        index: int,
        topic: bytes,
        qos: int,
        filler: bytes,
        run: bytes,
        window: int,
        readers: int,
        copies: int,
    ) -> None:
        super().__init__(connect)
        self.publishes = True
        self.index = index
        self.qos = qos
        self.readers = readers
        self.copies = copies
        self.limit = window * max(1, copies)
        self.sent = 0
        self.quota = -1  # messages to send in total, -1: no limit
        self.outstanding = 0  # deliveries or acknowledgements that the window waits for
        self.unacknowledged = 0
        self.refused = 0  # acknowledgements with an error code
        self.refusal = 0  # the last of these codes
        self.progressed = 0  # time of the last progress of the window (us)
        self.due = 0  # messages that are due (open loop)
        self.turn = 0  # its position among the publishers of its process
        self.waits = False  # true: a due message waits for the broker
        self.queued = False  # true: in the list of publishers to check
        self.most_unacknowledged = UNACKNOWLEDGED
        head = encode_binary(topic)
        section = b"\0" if self.version == V5 else b""
        length = len(head) + (2 if qos else 0) + len(section) + STAMP + len(filler)
        self._head = bytes((0x30 | qos << 1,)) + encode_length(length) + head
        self._middle = section + run + index.to_bytes(4, "big")
        self._filler = filler
        self.packet_bytes = len(self._head) - len(head) + length

    def established(self, answer: ConnAck) -> None:
        maximum = answer.properties.get(RECEIVE_MAXIMUM, UNACKNOWLEDGED)
        self.most_unacknowledged = min(UNACKNOWLEDGED, cast(int, maximum))  # [MQTT-3.3.4-7]
        self.state = UP

    def lost(self) -> None:
        super().lost()
        self.outstanding = 0  # messages in flight may be lost
        self.unacknowledged = 0

    def room(self) -> int:
        """Return how many messages quota, window and the receive maximum of the broker allow now."""
        if self.state != UP:
            return 0
        room = 1 << 30 if self.quota < 0 else self.quota - self.sent
        if self.qos:
            room = min(room, self.most_unacknowledged - self.unacknowledged)
        if self.limit:
            room = min(room, (self.limit - self.outstanding) // max(1, self.copies))
        return room

    def publish(self, count: int, intended: int) -> None:
        """Publish *count* messages with the intended send time *intended* (us)."""
        out = self.out
        first = self.sent
        last = first + count
        # Up to a carry, the bytes between the numbers of one message and those of the next are equal.
        tail = (intended & WRAP).to_bytes(4, "big") + self._filler
        link = tail + self._head
        lead = self._head
        while first < last:
            carry = min(last, (first | 0xFFFF) + 1)
            middle = self._middle + TWO[first >> 16 & 0xFFFF]
            if self.qos:
                for sequence in range(first, carry):
                    out.append(lead)
                    out.append(TWO[sequence % PACKET_IDS + 1])
                    out.append(middle)
                    out.append(TWO[sequence & 0xFFFF])
                    lead = link
            else:
                out.append(lead + middle)
                out.append(TWO[first & 0xFFFF])
                between = link + middle
                for sequence in range(first + 1, carry):
                    out.append(between)
                    out.append(TWO[sequence & 0xFFFF])
                lead = link
            first = carry
        if count:
            out.append(tail)
        if self.qos:
            self.unacknowledged += count
        self.sent += count
        self.outstanding += count * max(1, self.copies)

    def delivered(self, count: int, now: int) -> None:
        """Count deliveries of messages."""
        self.outstanding = max(0, self.outstanding - count)  # messages that were written off may still arrive
        self.progressed = now

    def write_off(self) -> None:
        """Regard all messages in flight as lost."""
        self.outstanding = 0

    def take_run(self, data: bytes, position: int, end: int, now: int) -> int:
        done = 0
        while position + 4 <= end and data[position + 1] == 2:
            first = data[position]
            if first == 0x40 or first == 0x70:
                done += 1
            elif first == 0x50:
                self.out.append(b"\x62\x02" + data[position + 2 : position + 4])
            else:
                break
            position += 4
        if done:
            self._finished(done, now)
        return position

    def take_other(self, packet: Packet, now: int) -> None:
        if not isinstance(packet, Ack):
            return
        if packet.code >= 0x80:
            self.refused += 1
            self.refusal = packet.code
        if packet.kind == PUBREC and packet.code < 0x80:
            self.out.append(encode(Ack(PUBREL, packet.packet_id), self.version))
        elif packet.kind in (PUBACK, PUBREC, PUBCOMP):
            self._finished(1, now)

    def _finished(self, count: int, now: int) -> None:
        self.unacknowledged = max(0, self.unacknowledged - count)
        if not self.copies:
            self.delivered(count, now)
