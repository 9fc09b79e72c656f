# A flow: what one client publishes and others are owed, told apart from what a fault may cost.
#
# A message is owed when its publisher is connected and its subscriber has its SUBACK. It is owed no more when one of
# the two has lost its connection, except where the session lives on. So whatever else is missing, the broker lost.
from broker.mqtt.packets import Publish
from tests.tools.faults.client import Client
from tests.tools.faults.troubles import Troubles
from tests.tools.faults.victim import state
from tests.tools.fuzz.loop import Loop

Number = tuple[int, int]  # life of the publisher (its connections), number of the message in it
REPLACED = 3.0  # seconds that a worker's successor takes to come, and who is at its door waits for it
UNSEEN = 0.3  # seconds in which the others may not have heard yet that a worker is gone


class Flow:
    """*subscribers*: one, or the members of a shared subscription, each message being for one of them."""

    def __init__(
        self, loop: Loop, troubles: Troubles, name: str, qos: int, publisher: Client, subscribers: list[Client]
    ) -> None:
        self.name = name
        self.topic = name
        self.publisher = publisher
        self.subscribers = subscribers
        self.owed: dict[Number, float] = {}  # when each was sent
        self._loop = loop
        self._troubles = troubles
        self._qos = qos
        self._life = 0
        self._number = 0
        self._last: dict[tuple[int, str], int] = {}  # of each life, to each subscriber
        self._taken: set[Number] = set()
        self._broken = 0.0  # since when it lacks a process
        self._amnesty = 0.0  # what was sent until then may be lost
        publisher.on_up = self._publisher_up
        publisher.on_down = lambda was_up: self._down(publisher, was_up)
        for one in subscribers:
            one.on_down = lambda was_up, one=one: self._down(one, was_up)  # type: ignore[misc]
            one.on_message = lambda packet, one=one: self.take(one, packet)  # type: ignore[misc]

    def send(self) -> None:
        if not self.publisher.up:
            return
        self._number += 1
        now = self._loop.now
        number = (self._life, self._number)
        if all(one.up for one in self.subscribers) and now >= self._amnesty:
            self.owed[number] = now
        payload = f"{self._life} {self._number} {now!r}".encode()
        self.publisher.publish(self.topic, payload, self._qos)

    def take(self, subscriber: Client, packet: Publish) -> None:
        life, number, sent = (float(word) for word in packet.payload.split())
        found = (int(life), int(number))
        last = self._last.get((found[0], subscriber.client_id), 0)
        if found in self._taken:
            if not packet.dup:
                self._fail(f"{found} came twice to {subscriber.client_id}")
            return
        if found[1] < last:
            self._fail(f"{found} came after {(found[0], last)} to {subscriber.client_id}")
        self._last[found[0], subscriber.client_id] = max(last, found[1])
        self._taken.add(found)
        self.owed.pop(found, None)
        if len(self.subscribers) == 1:
            self._look_for_missing(found)
        now = self._loop.now
        if self._broken and sent > self._broken:
            self._troubles.served_again(self.name, self._broken, now)
            self._broken = 0.0
        self.judge(subscriber, sent, now)

    def judge(self, subscriber: Client, sent: float, now: float) -> None:
        if all(one.up and one.since <= sent for one in (self.publisher, subscriber)):
            what = f"{self.name}: a message"
            self._troubles.took(what, {self.publisher.worker, subscriber.worker}, sent, now)

    def finish(self) -> None:
        """All that is owed has had the time to come."""
        if self.owed:
            first = next(iter(self.owed.items()))
            self._fail(f"{len(self.owed)} lost, {first[0]} the first, sent at {first[1] - self._troubles.began:.2f} s")
        if self._broken:
            self._fail("was never served again")

    def settled(self) -> bool:
        return not self.owed and not self._broken

    def _look_for_missing(self, found: Number) -> None:
        """What came shows that what was sent before it will not come."""
        missing = [one for one in self.owed if one[0] == found[0] and one[1] < found[1]]
        if missing:
            self._fail(f"{missing[0]} and {len(missing) - 1} more were overtaken by {found}")
            for one in missing:
                del self.owed[one]

    def _publisher_up(self) -> None:
        self._life += 1
        self._number = 0

    def _down(self, client: Client, was_up: bool) -> None:
        now = self._loop.now
        self.owed.clear()
        self._amnesty = now + UNSEEN
        if client.left or not was_up:
            return
        if client.worker and not self._troubles.in_trouble(client.worker, now, now):
            self._fail(f"{client.client_id} lost its connection to worker {client.worker}, which was well")
        self._troubles.died(client.worker)
        self._broken = self._broken or now

    def _fail(self, what: str) -> None:
        self._troubles.fail(f"{self.name}: {what}")


class RoamingFlow(Flow):
    """Its one subscriber has a session that outlives its connections, and comes back at any worker."""

    def __init__(self, loop: Loop, troubles: Troubles, name: str, publisher: Client, subscriber: Client) -> None:
        super().__init__(loop, troubles, name, 1, publisher, [subscriber])
        self.subscriber = subscriber
        self.resumed = 0
        self.lost = 0
        self._holder = 0  # the process that has the session
        self._left = 0.0
        self._subscribed = False
        self._entitled = False  # the session that there is has its SUBACK: until then a message need not come
        self._uncertain = False  # an attempt failed: its worker may have had the session, or have begun one
        subscriber.on_greeted = self._greeted
        subscriber.on_up = self._back

    def send(self) -> None:
        if self.publisher.up and self._subscribed:
            self._number += 1
            now = self._loop.now
            if self._entitled and now >= self._amnesty:
                self.owed[self._life, self._number] = now
            self.publisher.publish(self.topic, f"{self._life} {self._number} {now!r}".encode(), 1)

    def roam(self, politely: bool) -> None:
        """Come back elsewhere, if it is known where it is."""
        client = self.subscriber
        if client.up and client.worker:
            self._holder = client.worker
            self._left = self._loop.now
            client.leave(politely)

    def judge(self, subscriber: Client, sent: float, now: float) -> None:
        if sent > subscriber.since:
            super().judge(subscriber, sent, now)

    def _greeted(self) -> None:
        client = self.subscriber
        client.certain = not self._uncertain
        if not (client.present and client.certain):
            self.owed.clear()
            self._entitled = False

    def _back(self) -> None:
        client, now = self.subscriber, self._loop.now
        self._entitled = True
        if client.present:
            self.resumed += client.certain
        elif self._subscribed:
            self.lost += 1
            lives = state(self._holder) and self._holder not in self._troubles.killed
            if self._holder and lives and not self._uncertain:
                self._fail(f"its session was not there any more, and process {self._holder}, which had it, lives")
        if self._left and not self._uncertain:
            self._troubles.took(f"{self.name}: coming back", {0}, self._left, now, REPLACED)  # any worker
        self._left = 0.0
        self._uncertain = False
        self._subscribed = True

    def _down(self, client: Client, was_up: bool) -> None:
        if client is self.publisher:
            super()._down(client, was_up)
            return
        now = self._loop.now
        if not was_up:
            self._uncertain = True
        elif not client.left:
            if client.worker and not self._troubles.in_trouble(client.worker, now, now):
                self._fail(f"{client.client_id} lost its connection to worker {client.worker}, which was well")
            self._troubles.died(client.worker)
            self._holder = client.worker
            self._left = self._broken = now
            if not client.worker:
                self._uncertain = True
