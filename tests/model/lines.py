from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from broker.mqtt.packets import V5, Packet, Publish
from broker.mqtt.properties import TOPIC_ALIAS


class Client(Protocol):
    """One connection to the broker."""

    version: int
    inbox: list[Packet]  # what was read and not returned by receive() yet
    closed: bool  # by the broker

    def send(self, *packets: Packet) -> None: ...

    def receive(self) -> list[Packet]:
        """What came since the last call."""
        ...

    def drop(self) -> None:
        """End the connection without a DISCONNECT."""
        ...


class Place(Protocol):
    """A worker or a node, to which clients connect."""

    def open(self, version: int) -> Client: ...


@dataclass
class Line:
    """One connection of a client."""

    client: Client
    prompt: bool
    expected: list[Packet] = field(default_factory=list)  # answers to come, in order
    our_aliases: dict[int, bytes] = field(default_factory=dict)
    their_aliases: dict[int, bytes] = field(default_factory=dict)

    def say(self, packet: Packet, *answers: Packet) -> None:
        """Send *packet*, which *answers* are to follow."""
        self.client.send(packet)
        self.expected.extend(answers)

    def unaliased(self, packet: Publish) -> Publish:
        """*packet* with its topic [MQTT-3.3.2-8]."""
        properties = dict(packet.properties)
        alias = cast(int, properties.pop(TOPIC_ALIAS, 0))
        topic = packet.topic or self.their_aliases[alias]
        if alias:
            self.their_aliases[alias] = topic
        return replace(packet, topic=topic, properties=properties)

    def part(self, said: list[Packet], *last_words: Packet) -> None:
        """The broker has closed it, having *said* nothing but *last_words* where the version has them."""
        assert (list(last_words) if self.client.version == V5 else []) == said
        assert self.client.closed
        self.client.drop()
