# Clients that stay away for so long that their sessions are cold (in Redis alone, unread), while they get messages.
#
# Sessions that a worker has adopted, or that were there when the node was started, are cold as well. So counters of the
# node show that sessions were cooled and read again (`proven()`) only before the first worker has died.
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from broker.protocol.cold_sessions import COOL_AFTER
from tests.tools.faults.durable.client import DurableClient, Run
from tests.tools.faults.durable.counters import NodeCounters

RESTED: Final = COOL_AFTER + 1.0  # seconds after which the session of a client is cold, if its worker was not busy
AWAY: Final = (RESTED, RESTED + 9.0)  # seconds
HERE: Final = (0.5, 3.0)  # seconds until a client that is connected leaves
PUBLISHED: Final = (0.1, 1.0)  # seconds between two bursts of a publisher
ASKED: Final = 1.0  # seconds between two looks at the counters
BURST: Final = 3  # messages, at most
WINDOW: Final = 20  # publishes of one client that are not done
TOPICS: Final = 3  # of each publisher
SHORT: Final = 3  # seconds: the expiry of messages that end before their receivers are back
LONG: Final = 3600  # seconds: that of messages that do not end
CLEAN: Final = 0.05  # of all absences are a clean start instead
COOLED: Final = "sessions_cooled"
READ: Final = "sessions_warmed"
NAMES: Final = (COOLED, READ)

Every = Callable[[Callable[[], float], Callable[[], None]], None]  # has the second called, after seconds by the first


class ColdClients:
    def __init__(self, run: Run, counters: NodeCounters) -> None:
        self.publishers = [DurableClient(run, f"c{number}", filter=f"own/c{number}") for number in range(2)]
        self.clients = [
            DurableClient(run, "cold-1", filter="c/#", qos=1),
            DurableClient(run, "cold-2", filter="c/#", qos=2, receive_maximum=8),
            DurableClient(run, "cold-3", filter="c/c0/+", qos=2),
            DurableClient(run, "cold-4", filter="c/+/1", qos=1, slow=0.05),
            DurableClient(run, "cold-5", filter="d/p2/2", qos=2),
            DurableClient(run, "cold-6", filter="w/#", qos=1),
        ]
        self._counters = counters
        self._random: Random = run.random

    def load(self, every: Every) -> None:
        """Begin to come and go, and to publish."""
        uniform = self._random.uniform
        for one in self.publishers:
            every(lambda: uniform(*PUBLISHED), partial(self.publish, one))
        for one in self.clients:
            every(lambda: uniform(*HERE), partial(self.go, one))
        every(lambda: ASKED, self._counters.ask)

    def publish(self, one: DurableClient) -> None:
        """A burst of *one*, one of the publishers."""
        if not one.up:
            return
        random = self._random
        for _ in range(min(1 + random.randrange(BURST), WINDOW - len(one.outgoing))):
            topic = f"c/{one.client_id}/{random.randrange(TOPICS)}"
            one.publish(topic, random.choice((1, 2)), expiry=random.choice((0, 0, 0, SHORT, LONG)))

    def go(self, one: DurableClient) -> None:
        """Have *one*, one of the clients, leave for some time, or begin a new session."""
        if not one.up:
            return
        if self._random.random() < CLEAN:
            one.start_clean()
        else:
            one.leave(self._random.random() < 0.5, self._random.uniform(*AWAY))

    def rested(self) -> list[DurableClient]:
        """The clients whose sessions are cold, if their workers were not busy."""
        return [one for one in self.clients if one.absent_for() >= RESTED]

    def provoke(self) -> None:
        """Have cold sessions read: for half of their clients, and for messages."""
        rested = self.rested()
        for one in self._random.sample(rested, (len(rested) + 1) // 2):
            one.come_back()
        for one in self.publishers:
            self.publish(one)

    def come_back(self) -> None:
        for one in self.clients:
            one.come_back()

    def proven(self) -> bool:
        """Whether sessions went cold, and were read again, as the node tells."""
        return all(self._counters.totals[name] > 0 for name in NAMES)
