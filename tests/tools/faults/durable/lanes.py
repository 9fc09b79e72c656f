# The bulk of the messages of a run: publishers whose messages go to one durable session each, as fast as they may.
#
# A lane has a window of publishes that are not answered, so its rate follows from the node. Its publisher waits when
# its subscriber is far behind, as the oldest messages of a queue that is full are lost lawfully.
from typing import Final

from broker.mqtt.packets import Publish
from tests.tools.faults.durable.client import DurableClient, Run

WINDOW: Final = 100  # publishes that are not done
BEHIND: Final = 4000  # messages that the subscriber has not had; a queue holds 10 000
TOPICS: Final = 3  # of each lane


class Lane:
    def __init__(self, run: Run, name: str, qos: int, receive_maximum: int = 0, application: bool = False) -> None:
        """*qos*: of what is published, and of the subscription. The rest: of the subscriber, see `DurableClient`."""
        self.publisher = DurableClient(run, f"{name}-from", filter=f"own/{name}")
        self.subscriber = DurableClient(
            run,
            f"{name}-to",
            filter=f"b/{name}/+",
            qos=qos,
            receive_maximum=receive_maximum,
            application=application,
        )
        self.subscriber.heard = self._heard
        self._name = name
        self._qos = qos
        self._heard_of = 0  # the greatest number that the subscriber had
        self._sessions = 0  # that the subscriber has begun

    def publish(self) -> None:
        """As much as the window, the subscriber and the connection allow."""
        publisher = self.publisher
        if not publisher.up:
            return
        if self._sessions != self.subscriber.sessions:  # what waited for the one before does not come any more
            self._sessions = self.subscriber.sessions
            self._heard_of = publisher.number
        room = min(WINDOW - len(publisher.outgoing), BEHIND - (publisher.number - self._heard_of))
        for _ in range(room):
            publisher.publish(f"b/{self._name}/{publisher.number % TOPICS}", self._qos)

    def _heard(self, packet: Publish) -> None:
        self._heard_of = max(self._heard_of, int(packet.payload.split()[1]))
