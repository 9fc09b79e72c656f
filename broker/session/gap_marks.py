# What marks the first message after a gap with user properties, for a client that asked for them.
#
# It takes the place of the topic aliases of a session: all messages pass them that are sent for the first time, and a
# session without either has a path of its own that is no longer for this. A message is shared with other receivers, so
# this one gets a variant. If a message has no room for the properties below the client's maximum packet size
# [MQTT-3.1.2-24], it goes without, and the next one is tried. A message that is sent again has none.
from broker.mqtt.packets import V5
from broker.session.aliases import TopicAliases
from broker.session.losses import Losses
from broker.session.message import Message


class GapMarks(TopicAliases):
    def __init__(self, losses: Losses, aliases: TopicAliases | None) -> None:
        """*aliases*: those of the connection, if there are any."""
        super().__init__(0)
        self.aliases = aliases
        self._losses = losses

    def packet(self, message: Message, packet_id: int, maximum_packet: int, now: float) -> bytes:
        gap = self._losses.unmarked
        if gap is not None:
            marked = message.variant(message.qos, message.retain, gap.properties())
            if not maximum_packet or marked.length(V5, now) <= maximum_packet:
                self._losses.unmarked = None
                return self._encoded(marked, packet_id, maximum_packet, now)
        return self._encoded(message, packet_id, maximum_packet, now)

    def _encoded(self, message: Message, packet_id: int, maximum_packet: int, now: float) -> bytes:
        if self.aliases is not None:
            return self.aliases.packet(message, packet_id, maximum_packet, now)
        return message.packet(V5, packet_id, now) if packet_id else message.whole(V5, now)
