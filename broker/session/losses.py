# What a session has not delivered, by reason; and of that the gap: what its client has not been told of (gap.py).
#
# A full queue under a flood drops 100 000 messages a second, so a drop costs what counting it costs: one number by its
# reason, and for its topic a comparison with that of the drop before. Nothing is told, stored or looked up then. The
# first loss after a while notes the session at its `LossListener`, which looks at it once a second until nothing is
# lost any more: so the time of the last loss is known to a second. What was told is remembered as the counts that there
# were. Rejected: a record for each gap that is counted beside the others, and a look at the clock for each drop.
#
# Operators want to know when each client lost something, also those that are not told: the first and the last time of
# each reason, which are as exact as the clock of the `LossListener` is, a fraction of a second.
#
# A session that has lost nothing has no Losses, unless its client asks for properties. They take about 500 bytes, and
# some 200 more once the client was told of a gap.
from typing import TYPE_CHECKING, Final

from broker.session.gap import LOSSES, TOPIC_BYTES, TOPICS, Gap, OwedGap

if TYPE_CHECKING:
    from broker.session.session import Session

QUIET: Final = 0  # the next loss notes the session
NOTED: Final = 1  # it is noted, and will be looked at
LEAVING: Final = 2  # it moves to another worker, which will be told; it is not looked at here
IGNORED: Final = 3  # nobody is to be told: its client has neither subscribed to notices nor asked for properties
AT_ONCE: Final = -1e9  # seconds: long before any time of a clock


class Loss:
    """Messages that were lost for one reason. *first*, *last*: when, as Unix times in milliseconds."""

    def __init__(self, count: int, first: int, last: int) -> None:
        self.count = count
        self.first = first
        self.last = last


class Losses:
    """Times are Unix times in milliseconds, and *now* is the time of the worker in seconds."""

    def __init__(self) -> None:
        self.state = QUIET
        self.asked = False  # its client, the latest if it is away, asked for properties that tell of gaps
        self.queued = False  # it will be looked at again, whatever its state is
        self.told_at = AT_ONCE  # when the client was told last, in the time of the worker
        self.stored_at = AT_ONCE
        self.stored = False  # there is a gap in the store, which is to be removed when the client is told
        self.unstored = False  # something was lost since the gap was stored
        self.blocked = False  # a notice waits for a place in the window
        self.named = 0  # messages of the gap whose topic is known
        self.latest = b""  # the topic that was named last
        self.unmarked: Gap | None = None  # for the properties of the next message that is delivered
        self.noticed = False  # its client got a notice of that gap, too
        self._here: dict[str, Loss] = {}  # since the session is at this worker, by the label of a DropReason
        self._told: dict[str, int] | None = None  # the counts when the client was told last
        self._brought: Gap | None = None  # what was lost at other workers, or before a restart
        self._first = 0
        self._last = 0
        self._stamped = 0  # how many losses there were at `_last`
        self._topics: list[bytes] = []
        self._many = False  # there are more topics than a gap names

    def add(self, label: str, count: int, topic: bytes, at: int) -> None:
        """Count *count* messages, lost *at*. *topic*: b"" if it is unknown, or if *label* is that of no loss."""
        loss = self._here.get(label)
        if loss is None:
            self._here[label] = Loss(count, at, at)
        else:
            loss.count += count
            loss.last = at
        if topic:
            self.named += count
            if topic is not self.latest:
                self.name(topic)

    def begins(self, label: str) -> bool:
        """Whether the session, which is quiet, is to be noted for what was counted as *label*."""
        if label not in LOSSES:
            return False
        self.state = NOTED
        return True

    def name(self, topic: bytes) -> None:
        """Name *topic*, which is not that of the loss before."""
        self.latest = topic
        if not self._many and topic not in self._topics:
            self._topics.append(topic)
            size = sum([len(each) for each in self._topics])
            if len(self._topics) > TOPICS or size > TOPIC_BYTES:
                self._many = True
                self._topics = []

    def counts(self) -> dict[str, int]:
        """Messages since the session is at this worker, by the label of a DropReason."""
        return {label: loss.count for label, loss in self._here.items()}

    def by_reason(self) -> dict[str, Loss]:
        """What was lost here, and elsewhere if the client is still to be told of that."""
        found = dict(self._here)
        brought = self._brought
        if brought is not None:
            for label, count in brought.counts.items():
                here = self._here.get(label)
                if here is None:
                    found[label] = Loss(count, brought.first, brought.last)
                else:
                    found[label] = Loss(count + here.count, brought.first, here.last)
        return found

    def lost(self) -> int:
        """The messages of the gap."""
        return (0 if self._brought is None else self._brought.total()) + self._lost_here()

    def untold(self) -> int:
        """The messages of which the client is still to be told."""
        if self.state == IGNORED:
            return 0
        return self.lost() + (0 if self.unmarked is None or self.noticed else self.unmarked.total())

    def _lost_here(self) -> int:
        told = self._told
        lost = sum([loss.count for label, loss in self._here.items() if label in LOSSES])
        return lost if told is None else lost - sum([count for label, count in told.items() if label in LOSSES])

    def settled(self) -> bool:
        """Whether what its client, which is away, is to be told is stored: nothing but counts is in memory alone."""
        return self.state == IGNORED or (self.state == QUIET and not (self.queued or self.unstored))

    def stamp(self, at: int) -> bool:
        """Take note of the time *at*; true if something was lost since the last time."""
        lost = self._lost_here()
        if lost == self._stamped:
            return False
        if not self._stamped:
            self._first = at
        self._last = at
        self._stamped = lost
        self.unstored = True
        return True

    def note(self, at: int) -> None:
        """The session is noted at the time *at*, for a loss that was just counted."""
        if not self._stamped:
            self._first = at
        self._last = at
        self._stamped = self._lost_here()
        self.unstored = True

    def gap(self, at: int) -> Gap | None:
        """The gap up to the time *at*; None if there is none."""
        self.stamp(at)
        brought = self._brought
        if not self._stamped:
            return brought
        told = self._told or {}
        counts: dict[str, int] = {}
        for label, loss in self._here.items():
            count = loss.count - told.get(label, 0)
            if count > 0 and label in LOSSES:
                counts[label] = count
        known = not self._many and self.named == self._stamped
        here = Gap(counts, self._first, self._last, list(self._topics) if known else None)
        return here if brought is None else brought.with_later(here)

    def owed(self, at: int) -> Gap | None:
        """The gap for another worker, or to be stored: also what the client would be told by properties only."""
        gap, unmarked = self.gap(at), self.unmarked
        if unmarked is None or self.noticed:
            return gap
        return unmarked if gap is None else unmarked.with_later(gap)

    def close_gap(self) -> None:
        """The client has been told of all that was lost so far, or need not be."""
        self._told = self.counts()
        self._brought = None
        self._stamped = self.named = 0
        self.latest = b""
        self._topics = []
        self._many = False

    def bring(self, gap: Gap | None) -> None:
        """*gap* was lost before the session came to this worker."""
        self._brought = gap
        if self.state == IGNORED:  # nobody was known to ask, so far
            self.state = QUIET

    def attend(self) -> None:
        """The client may have begun to listen: what it loses from now on matters, if nothing did before."""
        if self.state == IGNORED:
            self.close_gap()
            self.unmarked = None
            self.state = QUIET


class LossListener:
    """The port: who tells clients of gaps, and has them stored. This one tells nobody."""

    def __init__(self) -> None:
        self.at = 0  # the time, as a Unix time in milliseconds; a fraction of a second ago

    def note(self, session: "Session") -> None:
        """*session* has lost something, for the first time since it was looked at. To be called once."""

    def tell(self, session: "Session", now: float) -> None:
        """A delivery to *session* begins, whose outbox is `aside`. Tell its client of a gap, if that is possible."""

    def attached(self, session: "Session", asks: bool, now: float) -> None:
        """*session* has a new connection, whose client *asks* for properties that tell of gaps, or does not."""

    def rests(self, session: "Session", now: float) -> None:
        """*session* has no connection any more."""

    def flush(self, now: float) -> None:
        """The worker stops: have stored what is not."""

    def leaves(self, session: "Session") -> None:
        """*session* begins to move to another worker: its subscriptions will be removed here."""

    def owed(self, session: "Session") -> OwedGap:
        """What *session*, which leaves, brings to the other worker."""
        return OwedGap(False, None)

    def stays(self, session: "Session") -> None:
        """*session* does not leave, after all, and has its subscriptions again."""

    def bring(self, session: "Session", owed: OwedGap) -> None:
        """*session*, which has no connection, comes from another worker or from the store with what it is *owed*."""
