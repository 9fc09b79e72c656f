# A client of the simulation: it has a session that is stored, subscribes, publishes, and obeys the specification.
#
# Everything that it sees is noted for the judge of tests/tools/faults. It never discards what was not answered while
# its session is there, and acknowledges what it gets when the history says so, in order.
from collections import deque
from typing import TYPE_CHECKING, Final

from broker.mqtt.packets import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, SUBSCRIBE
from tests.tools.faults.durable.history import (
    Acknowledged,
    Answered,
    Connected,
    Connecting,
    Ended,
    Received,
    Released,
    Sent,
    Stray,
    Subscribed,
)
from tests.tools.simulate.link import Link, Outgoing

if TYPE_CHECKING:
    from tests.tools.simulate.world import World

PACKET_IDS: Final = 60_000


class SimClient:
    def __init__(self, world: "World", name: str, filter: str, qos: int, window: int, lowest: bool) -> None:
        """*filter*: "" if it does not subscribe. *lowest*: it publishes with the lowest packet id that is free."""
        self.name = name
        self.filter = filter
        self.up = False  # it has its CONNACK, and its SUBACK
        self.link: Link | None = None
        self.outgoing: dict[int, Outgoing] = {}  # by packet id, in the order of sending
        self.owed: deque[tuple[int, int]] = deque()  # acknowledgements: kind, packet id
        self.number = 0  # of its last publish
        self._world = world
        self._qos = qos
        self._window = window
        self._subscribed = False
        self._lowest = lowest
        self._packet_id = 0

    # What it does.

    def connect(self) -> Link:
        """Connect, also if it is connected: the former connection is not read any more."""
        self._leave()
        self.link = Link(self.name, self.filter.encode(), self._qos, self._window)
        world = self._world
        world.note(Connecting(world.now, self.name, False, self.name in world.applications))
        return self.link

    def disconnect(self, politely: bool) -> None:
        """*politely*: the worker reads what was sent."""
        link = self.link
        if link is not None:
            link.left = True
            if not politely:
                link.inbox.clear()
            self._leave()

    def _leave(self) -> None:
        if self.link is not None:
            self.link = None
            self.up = False
            self.owed.clear()
            self._world.note(Ended(self._world.now, self.name))

    def publish(self, topic: str, qos: int, lasting: float) -> Outgoing:
        """Only while it is up. *lasting*: seconds until it expires; 0.0: never."""
        self.number += 1
        self._packet_id = self._packet_id % PACKET_IDS + 1
        if self._lowest:
            self._packet_id = next(each for each in range(1, PACKET_IDS) if each not in self.outgoing)
        payload = f"{self.name} {self.number}".encode()
        ends = self._world.now + lasting if lasting else 0.0
        one = self.outgoing[self._packet_id] = Outgoing(self.number, topic, payload, qos, ends)
        self._world.published(self.name, one)
        self._send(self._packet_id, one, False)
        return one

    def _send(self, packet_id: int, one: Outgoing, dup: bool) -> None:
        world, link = self._world, self.link
        assert link is not None
        world.note(Sent(world.now, self.name, one.number, one.topic))
        link.inbox.append((PUBLISH, packet_id, one, dup))

    def acknowledge(self, most: int) -> None:
        """Send up to *most* of the acknowledgements that it owes."""
        world, link = self._world, self.link
        while most and self.owed and link is not None:
            most -= 1
            kind, packet_id = self.owed.popleft()
            if kind == PUBACK:
                world.note(Acknowledged(world.now, self.name, packet_id))
            link.inbox.append((kind, packet_id, None, False))

    # What it gets.

    def read(self) -> bool:
        """Take what has come; true if it was something."""
        link = self.link
        if link is None:
            return False
        data = link.received()
        at = 0
        while at < len(data):
            stop = at + 2 + data[at + 1]  # no packet here is longer than 127 bytes
            self._take(link, data[at], data[at + 2 : stop])
            at = stop
        if not link.open and link is self.link:
            self._leave()
        return bool(data)

    def _take(self, link: Link, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == PUBLISH:
            self._received(first, body)
        elif kind == CONNACK:
            self._greeted(link, body[0] == 1)
        elif kind == SUBACK:
            self._subscribed = self.up = True
            self._world.note(Subscribed(self._world.now, self.name, self.filter))
        else:
            self._answered(link, kind, body[0] << 8 | body[1], body[2] if len(body) > 2 else 0)

    def _greeted(self, link: Link, present: bool) -> None:
        world = self._world
        world.note(Connected(world.now, self.name, present))
        if not present:
            self._subscribed = False
            self.outgoing.clear()
        for packet_id, one in self.outgoing.items():
            if one.received:
                link.inbox.append((PUBREL, packet_id, None, False))
            else:
                self._send(packet_id, one, True)
        if self._subscribed or not self.filter:
            self.up = True
        else:
            link.inbox.append((SUBSCRIBE, 0, None, False))

    def _received(self, first: int, body: bytes) -> None:
        qos = first >> 1 & 3
        end = 2 + (body[0] << 8 | body[1])
        packet_id = body[end] << 8 | body[end + 1]
        publisher, number = body[end + 2 :].decode().split()
        world = self._world
        message, topic = (publisher, int(number)), body[2:end].decode()
        world.note(Received(world.now, self.name, message, topic, qos, packet_id, bool(first & 8)))
        self.owed.append((PUBACK if qos == 1 else PUBREC, packet_id))

    def _answered(self, link: Link, kind: int, packet_id: int, code: int) -> None:
        world = self._world
        if kind == PUBREL:
            world.note(Released(world.now, self.name, packet_id))
            self.owed.append((PUBCOMP, packet_id))
            return
        one = self.outgoing.get(packet_id)
        expected = PUBACK if one is not None and one.qos == 1 else PUBCOMP if one is None or one.received else PUBREC
        if one is None or kind != expected:
            world.note(Stray(world.now, self.name, f"packet of kind {kind} for {packet_id}"))
            return
        if kind != PUBCOMP:
            world.note(Answered(world.now, self.name, one.number, code))
        if kind == PUBREC:
            one.received = True
            link.inbox.append((PUBREL, packet_id, None, False))
        else:
            del self.outgoing[packet_id]
