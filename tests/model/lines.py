from dataclasses import dataclass, field, replace
from typing import cast

from broker.mqtt.packets import V5, Packet, Publish
from broker.mqtt.properties import TOPIC_ALIAS
from tests.inprocess import Client


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

    def part(self, *last_words: Packet) -> None:
        """The broker has closed it, having said *last_words* where the version has them."""
        assert (list(last_words) if self.client.version == V5 else []) == self.client.receive()
        assert self.client.closed
        self.client.drop()
