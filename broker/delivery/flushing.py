# Flushing: when the bytes that a connection is owed go to the kernel.
#
# A send costs microseconds, a message in it a fraction of one. At the end of each tick all that was written leaves in
# one send for each connection. While the worker is busy it pays to wait a little longer, because more will be written
# meanwhile. So a connection has a strategy:
#
# - AT_ONCE: at the end of the tick.
# - ADAPTIVE: at the end of the tick while the worker is calm (see CALM); the busier it is, the longer the connection is
#   held, up to the longest hold. Only a connection whose messages come a GAP or less apart is held, and not once it has
#   ENOUGH. A connection that was held is held again if enough messages joined; else not for the next DOUBTS sends, as
#   in a closed loop, where the reader answers before more is written. For less frequent messages a hold saves next to
#   nothing.
# - BRIEF: as ADAPTIVE, but for LANE_HOLD at most. It is for lanes to other nodes, where each send is work for three
#   processes: this worker, Redis, and the worker there.
# - BUFFERED: after a number of messages, or a time after the first of them.
#
# While messages come from other nodes, no hold of ADAPTIVE is longer than CROSSING_HOLD: they have waited on their way,
# for the lane and for Redis. That is so for all clients of the worker, as a send does not know what is in it.
#
# When the hold of one connection is over, those whose holds are half over are sent to with it: otherwise the worker
# would wake up for each of them.
#
# While only connections whose holds are joined are sent to, no client waits for an answer, so the reactor may stop
# polling for a moment: input that arrives meanwhile comes with one poll, and the messages of its readers leave in one
# send. At 20 000 messages a second from 1000 clients that saves more than half of the CPU; holds alone save a tenth.
#
# What a client waits for (acknowledgements, answers, pings) is never held, and takes held messages along. The number
# of holds is bounded: when there are too many, the oldest connection is sent to. A connection is sent to before it is
# closed.
#
# TBMQ's write-and-flush is AT_ONCE, and its buffered delivery is BUFFERED. The list of held connections stands for its
# cache of sessions that are not flushed.
from collections import deque
from typing import Final

from broker.delivery.outbox import ADAPTIVE, AT_ONCE, BRIEF, BUFFERED, Outbox
from broker.delivery.ring import Ring

STRATEGIES: Final = {"always": AT_ONCE, "adaptive": ADAPTIVE, "buffered": BUFFERED}
NEVER: Final = float("inf")

GAP: Final = 0.0014  # seconds: with fewer than four messages in five milliseconds it saves a tenth at best
ENOUGH: Final = 16  # chunks in one send, which share its cost
ENOUGH_BYTES: Final = 4096
LANE_HOLD: Final = 0.0005  # seconds: most of what a millisecond saves
LANE_ENOUGH: Final = 64  # chunks of a lane: its sends cost more
CROSSING_HOLD: Final = 0.00125  # seconds: at 10 000 a second, half of what crosses arrives within 1.5 ms
SLACK: Final = 0.5  # of a hold, which may end so much earlier
DOUBTS: Final = 32  # sends
WINDOW: Final = 0.020  # seconds over which it is measured how busy the worker is
SMOOTHING: Final = 0.3
PAUSE: Final = 0.001  # seconds that the reactor does not poll, and so is late for the next input
ASLEEP: Final = 0.2  # seconds without work, after which earlier measurements do not count
CALM: Final = 0.05  # share of the time that the worker works; up to it no connection is held (1000 messages a second)
BUSY: Final = 0.15  # from it on holds are the longest: sends are a third of the work, and most of them can be saved


class Flushing:
    """Decides which of the connections that were written to are sent to now.

    *longest* is the longest hold of ADAPTIVE and *buffered* that of BUFFERED, both in seconds. No hold of BRIEF is
    longer than *longest*. *most* is the number of connections that are held at the same time, for each of the three.
    """

    def __init__(self, dirty: "Ring[Outbox]", *, longest: float, buffered: float, most: int) -> None:
        self.due = NEVER  # when the next held connection has to be sent to, or earlier
        # Of clients alone:
        self.filled = 0  # holds that ended because the connection had enough to send
        self.waited = 0  # holds that ended because their time was over
        self.evicted = 0  # holds that ended because there were too many
        self._dirty = dirty
        self._longest = longest
        self._buffered = buffered
        self._most = most
        self._longest_of_lanes = min(LANE_HOLD, longest)
        self._hold = 0.0  # the current hold of ADAPTIVE, seconds
        self._lane_hold = 0.0  # that of BRIEF
        self._crossing = False  # messages have come from another node since the window began
        self._adaptive: deque[tuple[float, Outbox]] = deque()  # nearly ordered by due, as the hold changes
        self._lanes: deque[tuple[float, Outbox]] = deque()  # the same
        self._buffering: deque[tuple[float, Outbox]] = deque()
        self._since = 0.0  # when the window began
        self._worked = 0.0  # seconds of work in the window
        self._share = 0.0
        self._answered = 0.0  # when a connection was last sent to before the end of its hold

    def share(self) -> float:
        """The share of the time that the worker works, lately."""
        return self._share

    def hold(self) -> float:
        """Seconds that a connection may be held now, with ADAPTIVE."""
        return self._hold

    def holds(self, outbox: Outbox, now: float) -> bool:
        """Whether *outbox*, which was written to and is not pressing, is sent later; false: send it now."""
        if outbox.strategy == BUFFERED:
            return self._buffers(outbox, now)
        lane = outbox.strategy == BRIEF
        hold = self._lane_hold if lane else self._hold
        if not outbox.held and (hold == 0.0 or now - outbox.sent_at > (hold if outbox.joined else GAP)):
            return False
        if outbox.size >= ENOUGH_BYTES or outbox.pieces() >= (LANE_ENOUGH if lane else ENOUGH):
            if outbox.held:
                if not lane:
                    self.filled += 1
                outbox.joined = True
                outbox.doubts = 0
            return False
        if outbox.held:
            return True
        if outbox.doubts:
            outbox.doubts -= 1
            return False
        self._begin(outbox, now, now + hold, self._lanes if lane else self._adaptive)
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
                if first.strategy != BRIEF:
                    self.evicted += 1
                first.press()

    def sends(self, outbox: Outbox, now: float) -> None:
        """Take note that *outbox*, of a client, is sent."""
        if not outbox.held or (outbox.pressing and now < outbox.due):
            self._answered = now

    def pause(self, now: float) -> float:
        """Seconds for which the reactor need not poll for input."""
        line = self._adaptive or self._lanes
        if not line or now - self._answered < self._longest:
            return 0.0
        outbox = line[0][1]
        return min(PAUSE, self.due - now) if outbox.held and outbox.joined else 0.0

    def release(self, now: float) -> None:
        """Have the held connections sent to whose time is over, or will be soon."""
        self.due = min(
            self._release(self._adaptive, now, SLACK * self._hold),
            self._release(self._lanes, now, SLACK * self._lane_hold),
            self._release(self._buffering, now, 0.0),
        )

    def _release(self, line: "deque[tuple[float, Outbox]]", now: float, slack: float) -> float:
        """Do so for one line; return when the next hold of it is over. Holds may end *slack* seconds before that."""
        until = now
        while line:
            due, outbox = line[0]
            if outbox.held and outbox.due == due:  # else it was sent before
                if due > until:
                    return due
                until = now + slack
                if outbox.strategy != BRIEF:
                    self.waited += 1
                if due > now:
                    outbox.due = now  # it is over; whether it was joined is not known
                else:
                    pieces = outbox.pieces()
                    outbox.joined = pieces > 1 and now - outbox.held_at <= GAP * pieces
                    if not outbox.joined:
                        outbox.doubts = DOUBTS
                outbox.press()
            line.popleft()
        return NEVER

    def crossed(self) -> None:
        """Take note that messages have come from another node."""
        self._crossing = True

    def worked(self, seconds: float, now: float) -> None:
        """Take note that the worker worked for *seconds* since the last call, until *now*."""
        self._worked += seconds
        elapsed = now - self._since
        if elapsed < WINDOW:
            return
        share = min(1.0, self._worked / elapsed)
        self._share = share if elapsed > ASLEEP else self._share + SMOOTHING * (share - self._share)
        self._since = now
        self._worked = 0.0
        degree = min(1.0, max(0.0, (self._share - CALM) / (BUSY - CALM)))
        self._hold = (min(CROSSING_HOLD, self._longest) if self._crossing else self._longest) * degree
        self._crossing = False
        self._lane_hold = self._longest_of_lanes * degree
