# Flushing: when what a connection is owed goes to the kernel.
#
# A send costs microseconds, a message in it a fraction of one. At the end of each tick all that was written leaves in
# one send for each connection; while the worker is busy it pays to wait a little longer, as more will be written
# meanwhile. So a connection has a strategy:
#
# - AT_ONCE: at the end of the tick.
# - ADAPTIVE: the same while the worker is calm; the busier it is, the longer it waits, up to the longest hold. Only for
#   a connection whose messages come a GAP or less apart, and not once it has ENOUGH. Who is held once is held again if
#   enough joined; else not for the next DOUBTS sends, as in a closed loop, where the reader answers before more is
#   written. Where messages are rarer the delay would save next to nothing.
# - BUFFERED: after so many messages, or so long after the first of them.
#
# While nothing but holds that are joined leaves, nobody waits for an answer of ours, so the reactor may look away for a
# moment: what comes meanwhile comes with one poll, and its readers' messages leave in one send. At 20 000 messages a
# second from 1000 clients that saves more than half of the CPU, where the holds alone save a tenth.
#
# What a client waits for (acknowledgements, answers, pings) is never held, and takes along what is. Holds are bounded
# in number: the oldest is sent when there are too many. Whoever closes a connection has it sent before.
#
# TBMQ's write-and-flush is AT_ONCE, its buffered delivery BUFFERED; its cache of sessions that are not flushed is our
# line of those that are held.
from collections import deque
from typing import Final

from broker.delivery.outbox import ADAPTIVE, AT_ONCE, BUFFERED, Outbox
from broker.delivery.ring import Ring

STRATEGIES: Final = {"always": AT_ONCE, "adaptive": ADAPTIVE, "buffered": BUFFERED}
NEVER: Final = float("inf")

GAP: Final = 0.0014  # seconds: with fewer than four messages in five milliseconds it saves a tenth at best
ENOUGH: Final = 16  # pieces in one send: what it costs is spread over them
ENOUGH_BYTES: Final = 4096
DOUBTS: Final = 32  # sends
WINDOW: Final = 0.020  # seconds over which it is measured how busy the worker is
SMOOTHING: Final = 0.3
PAUSE: Final = 0.001  # seconds that the reactor looks away; it is late by as much for whoever comes next
ASLEEP: Final = 0.2  # seconds: what was before does not matter any more
CALM: Final = 0.05  # share of the time: up to it nothing is held; a thousand messages a second take as much
BUSY: Final = 0.15  # from it on the longest hold: sends are a third of the work already, and most can be saved


class Flushing:
    """Which of the connections that were written to are sent to now.

    *longest*, seconds, is the most that ADAPTIVE holds, *buffered* the most that BUFFERED does; *most*: connections
    that are held at the same time, of each.
    """

    def __init__(self, dirty: "Ring[Outbox]", *, longest: float, buffered: float, most: int) -> None:
        self.due = NEVER  # when the next one that is held has to go, or earlier
        self.filled = 0  # sends of what was held and had enough
        self.waited = 0  # of what was held long enough
        self.evicted = 0  # of what was held when too much was
        self._dirty = dirty
        self._longest = longest
        self._buffered = buffered
        self._most = most
        self._hold = 0.0  # seconds that ADAPTIVE holds now
        self._adaptive: deque[tuple[float, Outbox]] = deque()  # by due, nearly: the hold changes
        self._buffering: deque[tuple[float, Outbox]] = deque()
        self._since = 0.0  # when the window began
        self._worked = 0.0  # seconds in it
        self._share = 0.0
        self._answered = 0.0  # when something was sent that did not stay for all of a hold

    def holds(self, outbox: Outbox, now: float) -> bool:
        """Whether *outbox*, which was written to and does not press, is sent later; false: send it now."""
        if outbox.strategy != ADAPTIVE:
            return self._buffers(outbox, now)
        if outbox.size >= ENOUGH_BYTES or outbox.pieces() >= ENOUGH:
            if outbox.held:
                self.filled += 1
                outbox.joined = True
                outbox.doubts = 0
            return False
        if outbox.held:
            return True
        if self._hold == 0.0 or now - outbox.sent_at > (self._hold if outbox.joined else GAP):
            return False
        if outbox.doubts:
            outbox.doubts -= 1
            return False
        self._begin(outbox, now, now + self._hold, self._adaptive)
        return True

    def _buffers(self, outbox: Outbox, now: float) -> bool:
        if outbox.messages() >= outbox.enough:
            if outbox.held:
                self.filled += 1
            return False
        if not outbox.held:
            self._begin(outbox, now, now + self._buffered, self._buffering)
        return True

    def _begin(self, outbox: Outbox, now: float, due: float, line: "deque[tuple[float, Outbox]]") -> None:
        outbox.held = True
        outbox.held_at = now
        outbox.due = due
        line.append((due, outbox))
        if due < self.due:
            self.due = due
        if len(line) > self._most:
            due, first = line.popleft()
            if first.held and first.due == due:
                self.evicted += 1
                first.press()

    def sends(self, outbox: Outbox, now: float) -> None:
        """*outbox*, a client's, is sent to."""
        if not outbox.held or (outbox.pressing and now < outbox.due):
            self._answered = now

    def pause(self, now: float) -> float:
        """Seconds for which the reactor need not look what has come."""
        if not self._adaptive or now - self._answered < self._longest:
            return 0.0
        due, outbox = self._adaptive[0]
        return min(PAUSE, due - now) if outbox.held and outbox.joined else 0.0

    def release(self, now: float) -> None:
        """Have those sent whose time has come."""
        self.due = min(self._release(self._adaptive, now), self._release(self._buffering, now))

    def _release(self, line: "deque[tuple[float, Outbox]]", now: float) -> float:
        """The same for one line; when the time of the next one comes."""
        while line:
            due, outbox = line[0]
            if outbox.held and outbox.due == due:  # else it was sent meanwhile
                if due > now:
                    return due
                self.waited += 1
                outbox.joined = now - outbox.held_at <= GAP * outbox.pieces()
                if not outbox.joined:
                    outbox.doubts = DOUBTS
                outbox.press()
            line.popleft()
        return NEVER

    def worked(self, seconds: float, now: float) -> None:
        """The worker was busy for *seconds* since this was last said, until *now*."""
        self._worked += seconds
        elapsed = now - self._since
        if elapsed < WINDOW:
            return
        share = min(1.0, self._worked / elapsed)
        self._share = share if elapsed > ASLEEP else self._share + SMOOTHING * (share - self._share)
        self._since = now
        self._worked = 0.0
        self._hold = self._longest * min(1.0, max(0.0, (self._share - CALM) / (BUSY - CALM)))
