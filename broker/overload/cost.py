# What a PUBLISH costs its client, in credits: roughly what it costs the broker. What a client is sent because it
# subscribes or connects costs it credits, too.
#
# The units of quantum.py measure the work of the reactor alone and cannot be configured. Credits also weigh what a
# message means for others (a store, other workers), and an operator sets these weights.
from typing import Final

from broker.config.schema import Cost

VISITS_PER_DELIVERY: Final = 4


class Prices:
    def __init__(self, cost: Cost) -> None:
        self._publish = cost.publish
        self._bytes_per_credit = cost.bytes_per_credit
        self._delivery = cost.delivery
        self._persistent = cost.persistent_delivery
        self._retained = cost.retained
        self._qos = cost.qos

    def of_run(self, count: int, size: int, deliveries: int) -> int:
        """Credits for *count* PUBLISHes of QoS 0, of *size* bytes together, each with *deliveries* receivers."""
        return count * (self._publish + deliveries * self._delivery) + size // self._bytes_per_credit

    def of(self, size: int, deliveries: int, retained: bool, qos: int) -> int:
        """Credits for a PUBLISH of *size* bytes with *deliveries* receivers, without those of `stored()`."""
        return (
            self._publish
            + size // self._bytes_per_credit
            + deliveries * self._delivery
            + (self._retained if retained else 0)
            + qos * self._qos
        )

    def stored(self, persistent: int) -> int:
        """Credits for a PUBLISH of QoS 1 or 2, in addition, if *persistent* of its receivers store it."""
        return persistent * self._persistent

    def refused(self, size: int) -> int:
        """Credits for a PUBLISH of *size* bytes that is dropped or refused: it reaches nobody."""
        return self._publish + size // self._bytes_per_credit

    def replayed(self, count: int) -> int:
        """Credits for *count* messages that are sent to the client because of what it did: retained messages for a
        new subscription, queued messages, and messages that are sent again.
        """
        return count * self._delivery

    def visited(self, visits: int) -> int:
        """Credits for *visits* of tree levels and receivers, to make the route of a topic."""
        return visits * self._delivery // VISITS_PER_DELIVERY

    def parts(self, size: int, deliveries: int, retained: bool, qos: int) -> tuple[int, int, int, int, int]:
        """The parts of `of()`: (base, for its bytes, for its deliveries, for being retained, for its QoS)."""
        for_retaining = self._retained if retained else 0
        return (
            self._publish,
            size // self._bytes_per_credit,
            deliveries * self._delivery,
            for_retaining,
            qos * self._qos,
        )
