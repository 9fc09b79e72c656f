# The topic aliases that the broker has set for one connection.
from broker.mqtt.packets import V5
from broker.session.message import Message


class TopicAliases:
    def __init__(self, maximum: int) -> None:
        """Aliases go from 1 [MQTT-3.3.2-8] to *maximum*, that of the client [MQTT-3.3.2-11]."""
        self._maximum = maximum
        self._aliases: dict[bytes, int] = {}  # by topic

    def packet(self, message: Message, packet_id: int, maximum_packet: int, now: float) -> bytes:
        """The packet of *message*. The first one of a topic tells the client what its alias is; later ones use it."""
        aliases = self._aliases
        known = aliases.get(message.topic, 0)
        alias = known or len(aliases) + 1
        if alias <= self._maximum:
            packet = message.aliased(b"" if known else message.topic, alias, packet_id, now)
            if not maximum_packet or len(packet) <= maximum_packet:  # an alias is longer than a short topic
                aliases[message.topic] = alias
                return packet
        return message.packet(V5, packet_id, now) if packet_id else message.whole(V5, now)
