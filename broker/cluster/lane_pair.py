# Two lanes to a worker of another node, made reliable over a channel that loses messages: the rules, without I/O.
#
# Redis pub/sub delivers to those that are subscribed at the moment, in order and once. While a connection is down, what
# is published is lost, and after it a former connection may still deliver old messages. So bytes are numbered by their
# offset in the lane, the receiver takes them in order, and the sender keeps them until they are confirmed.
#
# - What is not confirmed is at most WINDOW, and one message more: the rest waits in the outbox of the lane. It bounds
#   what a receiver that has gone costs, and what waits in Redis for one that is slow: Redis ends a subscription beyond
#   its client-output-buffer-limit (32 MiB), whose loss would be sent again and be too much again.
# - Confirmations are cumulative and ride on every message; without one they leave after CONFIRM_AFTER or CONFIRM_BYTES.
# - A receiver that sees a gap, or whose subscription was made again, asks once for all from its position on (RESEND),
#   and ever more seldom if it sees the same gap. It keeps nothing beyond a gap: gaps come with lost connections, which
#   lose everything.
# - A sender that hears nothing sends only the first bytes again, after FIRST_RETRY, then ever more seldom. The rest
#   follows when these are confirmed. It does not do so while Redis has not answered a PUBLISH, as nothing is lost yet.
#   PUBLISH that reached nobody is the same: the other end makes itself heard when it is subscribed.
# - An end that nothing reaches has lost its connection to Redis: its process has died, or is cut off. One that is slow,
#   or stands still, stays subscribed. So whoever waits for the other end can tell the two apart (`unreached_since`).
#
# Each end chooses an epoch when it opens the lanes, greater than all that it chose before. As in TCP, bytes are sent
# only when each end knows that the other one knows its epoch (`paired`), and taken only with both epochs right. Before
# that, a greater epoch of the other end just replaces the one that was known; after that it means that the other end
# has begun anew, and so must this one: what was on its way belongs to what is gone. Two ends cannot restart each other
# in turns: an end that follows the other's restart knows the new epoch, so the other was never paired with an older
# one. For the same reasons a message that somebody recorded and publishes again changes nothing: an old epoch is
# ignored, offsets below the position are dropped, and a request to resend is obeyed once in RESEND_PAUSE.
from typing import Final

from broker.cluster.lane_message import CONTROL, DATA, PAIRED, RESEND, LaneMessage, Part
from broker.store.redis.connection import LONGEST_PAUSE

WINDOW: Final = 1024 * 1024  # bytes of a lane that are not confirmed; half of what a gate lets be on its way
MESSAGE: Final = 256 * 1024  # bytes of a lane in one message
FIRST_BYTES: Final = 32 * 1024  # of a message that is sent to find out whether the other end is there
CONFIRM_BYTES: Final = 64 * 1024  # received since the last confirmation
CONFIRM_AFTER: Final = 0.01  # seconds: as long as a worker waits to report what it has processed, on the control lane
FIRST_RETRY: Final = 0.3  # seconds without progress
LONGEST_RETRY: Final = 5.0
RESEND_PAUSE: Final = 0.05  # seconds between two requests to resend the same that are obeyed, or the first two made
SETTLING: Final = 2 * LONGEST_PAUSE  # seconds in which others connect again to a Redis that was away
MOST_RETRIES: Final = 8  # that reached the other end, without progress: about 25 s
NEVER: Final = float("inf")

TAKEN: Final = 0  # verdicts about a message
IGNORED: Final = 1  # it is old, or nonsense
BEGUN_ANEW: Final = 2  # the other end has begun its lanes anew: this end must do so, too


class SendingLane:
    """What was written to a lane and is not confirmed."""

    def __init__(self, number: int) -> None:
        self.written = 0  # bytes in all
        self.sent = 0  # bytes that were sent at least once
        self.confirmed = 0
        self.resent = 0  # bytes that were sent again, in all
        self._number = number
        self._chunks: list[bytes] = []
        self._begin = 0  # offset of the first chunk
        self._at = 0  # index of the chunk that is sent next
        self._next = 0  # its offset
        self._first_only = False  # only the first bytes are sent before some are confirmed

    def write(self, data: bytes) -> None:
        self.written += len(data)
        if len(data) <= MESSAGE:
            self._chunks.append(data)
            return
        for at in range(0, len(data), MESSAGE):
            self._chunks.append(data[at : at + MESSAGE])

    def has_room(self) -> bool:
        return self.written - self.confirmed < WINDOW

    def unconfirmed(self) -> int:
        return self.written - self.confirmed

    def waits(self) -> bool:
        """Whether something that was sent is not confirmed."""
        return self.sent > self.confirmed

    def sendable(self) -> bool:
        return self._at < len(self._chunks) and not (self._first_only and self._at > 0)

    def take(self) -> Part:
        """The next bytes to send."""
        most = FIRST_BYTES if self._first_only else MESSAGE
        chunks, begin, offset = self._chunks, self._at, self._next
        size = len(chunks[begin])
        end = begin + 1
        while end < len(chunks) and size + len(chunks[end]) <= most:
            size += len(chunks[end])
            end += 1
        self._at = end
        self._next = offset + size
        if offset < self.sent:
            self.resent += min(self.sent, self._next) - offset
        if self._next > self.sent:
            self.sent = self._next
        return Part(self._number, offset, chunks[begin] if end == begin + 1 else b"".join(chunks[begin:end]))

    def go_back(self, first_only: bool) -> None:
        """Send again what is not confirmed; if *first_only*, only the first bytes until some are confirmed."""
        self._at = 0
        self._next = self._begin
        self._first_only = first_only and self.waits()

    def confirm(self, offset: int) -> bool:
        """The other end has received *offset* bytes in all; true if that is more than was known."""
        if offset <= self.confirmed:
            return False
        self.confirmed = offset
        self._first_only = False
        chunks = self._chunks
        count = 0
        while count < len(chunks) and self._begin + len(chunks[count]) <= offset:
            self._begin += len(chunks[count])
            count += 1
        del chunks[:count]
        self._at -= count
        if self._at < 0 or self._next < self._begin:
            self._at = 0
            self._next = self._begin
        return True


class ReceivingLane:
    def __init__(self) -> None:
        self.received = 0  # bytes in all
        self.full = False  # nothing is taken: too many bytes are not served yet
        self.gap = -1  # the position at which a resend was asked for last,
        self.ask_at = 0.0  # when it is asked for again at the same position,
        self.ask_pause = RESEND_PAUSE  # and how long after that; seconds


class LanePair:
    def __init__(self, me: int, epoch: int) -> None:
        """*me*: the incarnation of this worker."""
        self.data = SendingLane(DATA)
        self.control = SendingLane(CONTROL)
        self.incoming_data = ReceivingLane()
        self.incoming_control = ReceivingLane()
        self.paired = False
        self.unanswered = 0  # messages that were published and about which Redis has said nothing
        self.gaps = 0
        self.failed = False  # the other end receives and makes no progress
        self.arrived: list[Part] = []  # of the message that was taken last
        self.unreached_since = NEVER  # since then nobody is subscribed at the other end; later than now: nobody knows
        self.epoch: Final = epoch
        self._me: Final = me
        self._known = 0  # the epoch of the other end
        self._due = True  # a message is to be sent, whether or not there are bytes
        self._asks = False  # it asks to resend
        self._held = False  # the last message reached nobody
        self._settled_at = 0.0  # who is subscribed then has connected again after what ended the connection here
        self._unanswered_lost = False  # the connection has ended before Redis answered
        self._unconfirmed = 0  # bytes received since the last message
        self._confirm_at = NEVER
        self._retry = FIRST_RETRY
        self._retry_at = NEVER
        self._retries = 0
        self._resent_at = -RESEND_PAUSE
        self._resent_from = (-1, -1)

    # Sending.

    def next_message(self, now: float) -> bytes | None:
        """The next message to publish; None: there is none now."""
        if self._held:
            return None
        parts: list[Part] = []
        if self.paired:
            if self.control.sendable():
                parts.append(self.control.take())
            if self.data.sendable():
                parts.append(self.data.take())
        if not parts and not self._due:
            return None
        flags = (PAIRED if self.paired else 0) | (RESEND if self._asks else 0)
        data, control = self.incoming_data.received, self.incoming_control.received
        message = LaneMessage(self._me, flags, self.epoch, self._known, data, control, parts)
        self.unanswered += 1
        self._due = self._asks = False
        self._unconfirmed = 0
        self._confirm_at = NEVER
        self._set_retry(now)
        return message.encode()

    def published(self, receivers: int, now: float) -> None:
        """Redis has published the oldest message without an answer, to so many *receivers*; less than 0: it has not."""
        self.unanswered -= 1
        if receivers > 0:
            self.unreached_since = NEVER
        elif receivers == 0 and self.unreached_since == NEVER:
            self.unreached_since = max(now, self._settled_at)
        if receivers <= 0 and not self._held:
            self._held = True
            self.data.go_back(True)
            self.control.go_back(True)
            self._set_retry(now)

    def disconnected(self) -> None:
        """The connection has ended: nobody knows which of the last messages were published."""
        if self.unanswered:
            self.unanswered = 0
            self._unanswered_lost = True
        self.unreached_since = NEVER

    def connected(self, now: float, settling: float = SETTLING) -> None:
        """Messages can be published and received again, or for the first time; some may have been missed.

        *settling*: seconds in which the other end may have to connect again, too.
        """
        if self._unanswered_lost:
            self._unanswered_lost = False
            self.data.go_back(True)
            self.control.go_back(True)
        self._due = True
        self._asks = self.paired
        self._held = False
        self._settled_at = now + settling
        self._retry = FIRST_RETRY
        self._retry_at = NEVER
        self._set_retry(now)

    def tick(self, now: float) -> float:
        """Decide what is due; return the time of the next tick. To be called only while messages can be published."""
        if now >= self._confirm_at:
            self._confirm_at = NEVER
            self._due = True
        if now >= self._retry_at:
            if self.unanswered:  # Redis is slow
                self._retry_at = now + self._retry
            else:
                self._try_again(now)
        return min(self._confirm_at, self._retry_at)

    def _try_again(self, now: float) -> None:
        if self.paired and not self._held:
            self._retries += 1
            self.failed = self._retries >= MOST_RETRIES
        self._held = False
        self.data.go_back(True)
        self.control.go_back(True)
        self._due = True
        self._retry = min(2 * self._retry, LONGEST_RETRY)
        self._retry_at = now + self._retry

    def _set_retry(self, now: float) -> None:
        if self.paired and not self._held and not self.data.waits() and not self.control.waits():
            self._retry = FIRST_RETRY
            self._retry_at = NEVER
            self._retries = 0
        elif self._retry_at == NEVER:
            self._retry_at = now + self._retry

    # Receiving.

    def take(self, message: LaneMessage, now: float) -> int:
        """Take *message* of the other end; its bytes that are new are in `arrived`. Return the verdict."""
        self.arrived = []
        if message.epoch < self._known or message.epoch == 0:
            return IGNORED
        if message.epoch > self._known:
            if self.paired:
                return BEGUN_ANEW
            self._known = message.epoch
            self._due = True
        self.unreached_since = NEVER
        if message.known != self.epoch:
            if self.paired:
                return IGNORED
            self._held = False
            self._due = True
            return TAKEN
        if message.data_received > self.data.sent or message.control_received > self.control.sent:
            return IGNORED
        self._held = False
        if not self.paired:
            self.paired = True
            self._retry = FIRST_RETRY
            self._retry_at = NEVER
        if not message.flags & PAIRED:
            self._due = True
        self._take_confirmations(message, now)
        for part in message.parts:
            self._take_part(self.incoming_data if part.lane == DATA else self.incoming_control, part, now)
        if self._unconfirmed >= CONFIRM_BYTES:
            self._due = True
        elif self._unconfirmed and self._confirm_at == NEVER:
            self._confirm_at = now + CONFIRM_AFTER
        self._set_retry(now)
        return TAKEN

    def _take_confirmations(self, message: LaneMessage, now: float) -> None:
        progress = self.data.confirm(message.data_received)
        if self.control.confirm(message.control_received) or progress:
            self._retry = FIRST_RETRY
            self._retry_at = NEVER
            self._retries = 0
        position = message.data_received, message.control_received
        if message.flags & RESEND and position == (self.data.confirmed, self.control.confirmed):
            if position != self._resent_from or now - self._resent_at >= RESEND_PAUSE:
                self._resent_from = position
                self._resent_at = now
                self.data.go_back(False)
                self.control.go_back(False)

    def _take_part(self, lane: ReceivingLane, part: Part, now: float) -> None:
        offset, size = part.offset, len(part.data)
        received = lane.received
        if offset > received:
            if lane.gap != received:
                lane.gap = received
                lane.ask_at = now
                lane.ask_pause = RESEND_PAUSE
                self.gaps += 1
            if now >= lane.ask_at:
                lane.ask_at = now + lane.ask_pause
                lane.ask_pause *= 2
                self._due = self._asks = True
        elif offset + size <= received:
            self._due = True  # the other end has missed the confirmation
        elif not lane.full:
            lane.received = offset + size
            self._unconfirmed += lane.received - received
            self.arrived.append(
                part if offset == received else Part(part.lane, received, part.data[received - offset :])
            )

    # State.

    def wants_to_send(self) -> bool:
        """Whether `next_message()` would return one."""
        if self._held:
            return False
        return self._due or (self.paired and (self.data.sendable() or self.control.sendable()))

    def due(self) -> float:
        """When `tick()` has something to do."""
        return min(self._confirm_at, self._retry_at)
