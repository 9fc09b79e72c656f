# Who publishes when, and the loop that has it done.
#
# Closed: a publisher sends as soon as its window has room, so the broker sets the pace. Open: messages have a time at
# which they are to be sent, whatever the broker does, and their latency counts from that time even if they leave
# later; so a broker that stalls cannot hide it by stalling the measurement with it (coordinated omission).
import select
from typing import Final

from cli.load.client import Client
from cli.load.histogram import Histogram
from cli.load.network import FULL, Network, now_us
from cli.load.publisher import Publisher

STALLED: Final = 2_000_000  # us without a delivery after which what is under way counts as lost


class Pace:
    """Decides what *publishers* send."""

    def __init__(self, network: Network, publishers: list[Publisher]) -> None:
        self.network = network
        self.publishers = publishers
        self.stopped = True
        self.sent = 0
        self.expected = 0  # deliveries of what was sent
        self.latest = 0  # when the last message was sent (us)
        self._ready: list[Publisher] = []

    def start(self, now: int) -> None:
        """Begin at *now* (us)."""
        self.stopped = False
        for publisher in self.publishers:
            publisher.progressed = now
            self.wake(publisher)

    def stop(self) -> None:
        """Publish no more."""
        self.stopped = True

    def wake(self, client: Client) -> None:
        """*client* may be able to publish now."""
        if isinstance(client, Publisher) and not client.queued:
            client.queued = True
            self._ready.append(client)

    def publish(self, publisher: Publisher, count: int, intended: int, now: int) -> None:
        """Have *publisher* write *count* messages that were to be sent at *intended* (us)."""
        publisher.publish(count, intended)
        self.latest = now
        self.sent += count
        self.expected += count * publisher.readers

    def pump(self, now: int) -> None:
        """Publish what is to be published at *now* (us)."""
        raise NotImplementedError

    def look_after(self, now: int) -> None:
        """Called several times a second."""

    def next_due(self) -> int:
        """When something will be to be published whatever comes (us), -1 if nothing will."""
        return -1


class ClosedPace(Pace):
    def __init__(self, network: Network, publishers: list[Publisher]) -> None:
        super().__init__(network, publishers)
        self.stalls = 0  # windows that stood still
        self._looked = 0  # when we last looked for them (us)

    def pump(self, now: int) -> None:
        ready = self._ready
        if not ready:
            return
        self._ready = []
        for publisher in ready:
            publisher.queued = False
            if self.stopped or self.network.full(publisher):
                continue  # it is woken when the kernel has taken what it sent
            room = publisher.room()
            if room > 0:
                if publisher.outstanding == 0:
                    publisher.progressed = now
                most = 1 + FULL // publisher.packet_bytes
                self.publish(publisher, min(room, most), now, now)
                self.network.send(publisher)
                if room > most:
                    self.wake(publisher)

    def look_after(self, now: int) -> None:
        """A broker that lost what a window waits for would end the load without a word."""
        if self.stopped or now - self._looked < STALLED // 4:
            return
        self._looked = now
        for publisher in self.publishers:
            if publisher.outstanding and now - publisher.progressed > STALLED:
                self.stalls += 1
                publisher.write_off()
                self.wake(publisher)


class OpenPace(Pace):
    """*rate*: messages a second of all *publishers* together, who take turns in their order; each has a quota."""

    def __init__(self, network: Network, publishers: list[Publisher], rate: float) -> None:
        super().__init__(network, publishers)
        self.lateness = Histogram()  # us: how late we sent what the broker let us send
        self.held_back = 0  # messages that waited for the broker
        self._every = 1_000_000 / rate  # us
        self._began = 0
        self._issued = 0
        self._total = 0  # messages to issue

    def start(self, now: int) -> None:
        super().start(now)
        self._began = now
        self._total = sum([publisher.quota for publisher in self.publishers])

    def next_due(self) -> int:
        if self.stopped or self._issued >= self._total:
            return -1
        return self._began + int(self._issued * self._every)

    def overdue(self) -> int:
        """Messages whose time has come and that were not sent."""
        return sum([publisher.due - publisher.sent for publisher in self.publishers])

    def pump(self, now: int) -> None:
        if self.stopped:
            return
        if now >= self._began:
            due = min(int((now - self._began) / self._every) + 1, self._total)
            publishers = self.publishers
            count = len(publishers)
            for number in range(self._issued, due):
                publisher = publishers[number % count]
                publisher.due += 1
                self.wake(publisher)
            if due > self._issued:
                self._issued = due
        ready = self._ready
        if ready:
            self._ready = []
            for publisher in ready:
                publisher.queued = False
                self._send_due(publisher, now)

    def _send_due(self, publisher: Publisher, now: int) -> None:
        """Send what is due from *publisher*, as far as the broker lets it."""
        count = publisher.due - publisher.sent
        if count <= 0:
            return
        room = 0 if self.network.full(publisher) else min(count, publisher.room(), 1 + FULL // publisher.packet_bytes)
        every = self._every * len(self.publishers)
        offset = self._began + publisher.turn * self._every
        for sequence in range(publisher.sent, publisher.sent + room):
            intended = int(offset + sequence * every)
            if publisher.held:
                self.held_back += 1
            else:
                self.lateness.add(now - intended, 1)
            self.publish(publisher, 1, intended, now)
        if room:
            self.network.send(publisher)
        publisher.held = room < count


class Windows:
    """Tells the publishers of this process what its subscribers have seen of them."""

    def __init__(self, total: int) -> None:
        """*total*: publishers of the whole load."""
        self.received = 0  # duplicates included
        self.duplicates = 0
        self.pace: Pace | None = None
        self._publishers: list[Publisher | None] = [None] * total

    def add(self, publisher: Publisher) -> None:
        self._publishers[publisher.index] = publisher

    def delivered(self, publisher: int, count: int, now: int) -> None:
        self.received += count
        one = self._publishers[publisher] if publisher < len(self._publishers) else None
        if one is not None:
            one.delivered(count, now)
            if self.pace is not None:
                self.pace.wake(one)

    def duplicated(self) -> None:
        self.duplicates += 1


class Loop:
    """Sends, waits, receives: the whole work of a process while it lasts."""

    def __init__(self, network: Network, pace: Pace) -> None:
        self.network = network
        self.pace = pace

    def work(self, until: int) -> None:
        """Go on to the time *until* (us)."""
        network = self.network
        pace = self.pace
        while True:
            now = now_us()
            if now >= until:
                return
            self._wait(now, until)
            woken = network.woken
            if woken:
                network.woken = []
                for client in woken:
                    pace.wake(client)
            pace.pump(now_us())
            network.flush()

    def _wait(self, now: int, until: int) -> None:
        """Take what comes, at most to *until* or to the next message that is due."""
        due = self.pace.next_due()
        if due < 0:
            self.network.turn((until - now) / 1_000_000)
        elif not self.network.turn(0.0):
            pause = min(due, until) - now_us()
            if pause > 0:
                # The epoll waits in whole milliseconds only; select() takes microseconds.
                if select.select([self.network.epoll], [], [], pause / 1_000_000)[0]:
                    self.network.turn(0.0)
