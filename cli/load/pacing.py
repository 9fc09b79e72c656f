# The pacing of publishers, and the main loop of a process.
#
# Closed loop: a publisher sends as soon as its window has room, so the broker determines the rate. Open loop: each
# message has an intended send time that does not depend on the broker. The latency counts from this time even if the
# message leaves later, so a broker that stalls cannot hide the stall from the measurement (coordinated omission).
import select
from typing import Final

from cli.load.client import Client
from cli.load.histogram import Histogram
from cli.load.network import FULL, Network, now_us
from cli.load.publisher import Publisher

STALLED: Final = 2_000_000  # us without a delivery after which messages in flight count as lost


class Pace:
    """Decides when *publishers* send."""

    def __init__(self, network: Network, publishers: list[Publisher]) -> None:
        self.network = network
        self.publishers = publishers
        self.stopped = True
        self.sent = 0
        self.expected = 0  # deliveries of the sent messages
        self.latest = 0  # time of the last sent message (us)
        self._ready: list[Publisher] = []

    def start(self, now: int) -> None:
        """Start at *now* (us)."""
        self.stopped = False
        for publisher in self.publishers:
            publisher.progressed = now
            self.wake(publisher)

    def stop(self) -> None:
        """Stop publishing."""
        self.stopped = True

    def wake(self, client: Client) -> None:
        """Check *client* at the next `pump()`: it may be able to publish."""
        if isinstance(client, Publisher) and not client.queued:
            client.queued = True
            self._ready.append(client)

    def publish(self, publisher: Publisher, count: int, intended: int, now: int) -> None:
        """Write *count* messages of *publisher* with the intended send time *intended* (us)."""
        publisher.publish(count, intended)
        self.latest = now
        self.sent += count
        self.expected += count * publisher.readers

    def pump(self, now: int) -> None:
        """Publish the messages that may be sent at *now* (us)."""
        raise NotImplementedError

    def maintain(self, now: int) -> None:
        """Called several times a second."""

    def next_due(self) -> int:
        """Return the time of the next scheduled message (us), -1 if there is none."""
        return -1


class ClosedPace(Pace):
    def __init__(self, network: Network, publishers: list[Publisher]) -> None:
        super().__init__(network, publishers)
        self.stalls = 0  # windows that made no progress for STALLED
        self._checked = 0  # time of the last check (us)

    def pump(self, now: int) -> None:
        ready = self._ready
        if not ready:
            return
        self._ready = []
        for publisher in ready:
            publisher.queued = False
            if self.stopped or self.network.full(publisher):
                continue  # it is woken when the kernel has accepted its bytes
            room = publisher.room()
            if room > 0:
                if publisher.outstanding == 0:
                    publisher.progressed = now
                most = 1 + FULL // publisher.packet_bytes
                self.publish(publisher, min(room, most), now, now)
                self.network.send(publisher)
                if room > most:
                    self.wake(publisher)

    def maintain(self, now: int) -> None:
        """Reset windows that wait for lost messages; otherwise the load would stop silently."""
        if self.stopped or now - self._checked < STALLED // 4:
            return
        self._checked = now
        for publisher in self.publishers:
            if publisher.outstanding and now - publisher.progressed > STALLED:
                self.stalls += 1
                publisher.write_off()
                self.wake(publisher)


class OpenPace(Pace):
    """*rate*: messages per second of all *publishers* together, which send in turn; each has a quota."""

    def __init__(self, network: Network, publishers: list[Publisher], rate: float) -> None:
        super().__init__(network, publishers)
        self.lateness = Histogram()  # us: the delay of messages that the broker did not delay
        self.delayed = 0  # messages that waited for the broker
        self._every = 1_000_000 / rate  # us
        self._began = 0
        self._issued = 0
        self._total = 0  # messages to schedule

    def start(self, now: int) -> None:
        super().start(now)
        self._began = now
        self._total = sum([publisher.quota for publisher in self.publishers])

    def next_due(self) -> int:
        if self.stopped or self._issued >= self._total:
            return -1
        return self._began + int(self._issued * self._every)

    def overdue(self) -> int:
        """Return the number of messages that are due but not sent."""
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
        """Send the due messages of *publisher*, as far as its window has room."""
        count = publisher.due - publisher.sent
        if count <= 0:
            return
        room = 0 if self.network.full(publisher) else min(count, publisher.room(), 1 + FULL // publisher.packet_bytes)
        every = self._every * len(self.publishers)
        offset = self._began + publisher.turn * self._every
        for sequence in range(publisher.sent, publisher.sent + room):
            intended = int(offset + sequence * every)
            if publisher.waits:
                self.delayed += 1
            else:
                self.lateness.add(now - intended, 1)
            self.publish(publisher, 1, intended, now)
        if room:
            self.network.send(publisher)
        publisher.waits = room < count


class Windows:
    """Passes deliveries of the subscribers of this process to the windows of its publishers."""

    def __init__(self, total: int) -> None:
        """*total*: number of publishers of the whole load."""
        self.received = 0  # including duplicates
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
    """The main loop of a process: wait, receive, publish, send."""

    def __init__(self, network: Network, pace: Pace) -> None:
        self.network = network
        self.pace = pace

    def work(self, until: int) -> None:
        """Run until the time *until* (us)."""
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
        """Process events until *until* or the next scheduled message, whichever is earlier."""
        due = self.pace.next_due()
        if due < 0:
            self.network.turn((until - now) / 1_000_000)
        elif not self.network.turn(0.0):
            pause = min(due, until) - now_us()
            if pause > 0:
                # epoll has a resolution of milliseconds, select() of microseconds.
                if select.select([self.network.epoll], [], [], pause / 1_000_000)[0]:
                    self.network.turn(0.0)
