# Gap notices: a client learns that it lost messages, how many, why and when.
#
# A client that has subscribed to its gap topic (session/gap_topic.py) gets a message there, and a client of 5.0 that
# sent the user property `weir-gap` = `1` in CONNECT gets properties on the next message (session/gap_marks.py). It is
# told once it can take something again, before the messages that wait: the notice must not wait in the queue that was
# full, and what was dropped was older than what is left. A client is told once a second at most, so there is one notice
# for a gap and not one for a message. A notice that cannot be sent is not lost: the gap grows.
#
# A first loss costs an entry in `_noted`. `run()` looks at those sessions, a limited number at once, and again at those
# in `_again` a second later, until nothing is left to be told. While a client is to be told, the outbox is `aside`, so
# that each delivery and each acknowledgement leads to `tell()`. Of sessions whose clients have asked for nothing,
# nothing is kept but the counts.
#
# A durable session has its gap stored: with what is written when its client leaves, at its first loss afterwards, and
# then every STORE_PAUSE at most. So a worker that is killed forgets the losses of the last seconds.
#
# Who may read a notice: the session that it is about, if the access rules let it read the topic. Of the topics that it
# names, all must be readable, as the rules or the user may have changed since the messages were offered.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.routing.authority import Authoriser
from broker.session.gap import Gap, OwedGap
from broker.session.gap_marks import GapMarks
from broker.session.gap_topic import filters_of, gap_topic
from broker.session.losses import IGNORED, LEAVING, NOTED, QUIET, Losses, LossListener
from broker.session.message import NEVER, Message
from broker.session.session import Session
from broker.session.subscription import Subscription

PAUSE: Final = 1.0  # seconds between two notices to one client, and between two looks at a session
STORE_PAUSE: Final = 10.0  # seconds between two changes of what is stored while a client is away
AT_ONCE: Final = 100  # sessions that one call of `run()` looks at, of each kind: a millisecond, two if all are told


class GapNotices(LossListener):
    def __init__(
        self,
        authoriser: Authoriser | None,
        topic_bytes: int,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """*topic_bytes*: a client id whose gap topic is longer gets no notices. *wall*: Unix time in seconds."""
        super().__init__()
        self._authoriser = authoriser
        self._topic_bytes = topic_bytes
        self._clock = clock
        self._wall = wall
        self._noted: deque[Session] = deque()
        self._again: deque[tuple[float, Session]] = deque()  # and when; the pause is always the same
        self.at = self._milliseconds()

    def run(self) -> None:
        """Look at sessions that have lost something. To be called several times a second."""
        now = self._clock()
        self.at = self._milliseconds()
        for _ in range(min(AT_ONCE, len(self._noted))):
            self._look(self._noted.popleft(), now)
        for _ in range(AT_ONCE):
            if not self._again or self._again[0][0] > now:
                break
            session = self._again.popleft()[1]
            if session.losses is not None:
                session.losses.queued = False
            self._look(session, now)

    # The port.

    def note(self, session: Session) -> None:
        if session.losses is not None:
            session.losses.note(self._milliseconds())
        self._noted.append(session)

    def tell(self, session: Session, now: float) -> None:
        losses, out = session.losses, session.outbox
        if out is None or session.transfer_filter is not None:  # then it is `aside` for that, too
            return
        if losses is None:
            out.end_aside()
            return
        if losses.blocked and session.inflight() >= session.window:  # a flood may ask for each of its messages
            return
        losses.blocked = _is_due(losses, now) and not self._tell(session, losses, now)
        if losses.unmarked is None and not losses.blocked:
            out.end_aside()
            aliases = session.aliases
            if isinstance(aliases, GapMarks):
                session.aliases = aliases.aliases
            if losses.stored:
                self._store(session, now)

    def attached(self, session: Session, asks: bool, now: float) -> None:
        losses = session.losses
        if losses is None and asks:
            losses = session.losses = Losses()
        if losses is not None:
            losses.attend()
            losses.asked = asks
            if not asks:
                losses.unmarked = None
            if losses.state == QUIET and losses.lost():
                losses.state = NOTED
                self._noted.append(session)
            _begin(session, losses, now)
        self._store(session, now)

    def rests(self, session: Session, now: float) -> None:
        self._store(session, now)

    def flush(self, now: float) -> None:
        for session in [*self._noted, *[each for _, each in self._again]]:
            if not session.ended:
                self._store(session, now)

    def leaves(self, session: Session) -> None:
        losses = session.losses
        if self._listens(session, losses):
            losses = session.losses = losses or Losses()
            losses.state = LEAVING

    def owed(self, session: Session) -> OwedGap:
        losses = session.losses
        if losses is None or losses.state != LEAVING:
            return OwedGap(False, None)
        return OwedGap(losses.asked, losses.owed(self._milliseconds()))

    def stays(self, session: Session) -> None:
        losses = session.losses
        if losses is not None and losses.state == LEAVING:
            losses.state = NOTED
            self._noted.append(session)

    def bring(self, session: Session, owed: OwedGap) -> None:
        if owed.asked or owed.gap is not None:
            session.losses = session.losses or Losses()
            session.losses.asked = owed.asked
        if session.losses is not None:
            session.losses.bring(owed.gap)

    # Looking at one session.

    def _look(self, session: Session, now: float) -> None:
        losses = session.losses
        if losses is None or session.ended or losses.state == LEAVING:
            return
        changed = losses.stamp(self._milliseconds())
        if not self._listens(session, losses):
            losses.state = IGNORED
            return
        untold = True
        settled = not changed  # if it is still losing messages, the time of the last loss is to be known
        if session.outbox is not None:
            _begin(session, losses, now)
            session.pump(now)
            untold = losses.lost() > 0
            settled = not untold
        if session.storage is not None and losses.unstored and untold:
            if now >= losses.stored_at + STORE_PAUSE:
                self._store(session, now)
            else:
                settled = False
        if settled:
            losses.state = QUIET
        elif not losses.queued:
            losses.queued = True
            self._again.append((now + PAUSE, session))

    def _listens(self, session: Session, losses: Losses | None) -> bool:
        """Whether the client of *session* is to be told of gaps."""
        return (losses is not None and losses.asked) or len(self._subscriptions(session)) > 0

    def _subscriptions(self, session: Session) -> list[Subscription]:
        """Those of *session* under which it gets notices."""
        subscriptions = session.subscriptions
        if not subscriptions or len(session.client_id) > self._topic_bytes:
            return []
        topic = gap_topic(session.client_id)
        if len(topic) > self._topic_bytes or not self._may_receive(session, topic):
            return []
        return [subscriptions[filter] for filter in filters_of(topic) if filter in subscriptions]

    def _may_receive(self, session: Session, topic: bytes) -> bool:
        return self._authoriser is None or self._authoriser.may_receive(session.principal, topic)

    def _store(self, session: Session, now: float) -> None:
        """Have stored what *session*, if it is durable, is owed now."""
        storage, losses = session.storage, session.losses
        if storage is None or (losses is not None and losses.state == LEAVING):
            return
        if losses is None or losses.state == IGNORED or not self._listens(session, losses):
            storage.store_gap(b"")
            return
        gap = losses.owed(self._milliseconds())
        if gap is not None:
            losses.stored_at = now
        losses.stored = gap is not None
        losses.unstored = False
        storage.store_gap(OwedGap(losses.asked, gap).pack())

    # Telling.

    def _tell(self, session: Session, losses: Losses, now: float) -> bool:
        """Tell the client of the gap of *session*; false if there is no room for the notice now."""
        gap = losses.gap(self._milliseconds())
        notice = None if gap is None else self._notice(session, gap, now)
        if notice is not None and not session.send_ahead(notice, now):
            return False
        losses.close_gap()
        losses.told_at = now
        losses.state = QUIET  # the time of the next loss is to be known
        if losses.asked and gap is not None:
            before = losses.unmarked
            losses.noticed = notice is not None and (before is None or losses.noticed)
            losses.unmarked = gap if before is None else before.with_later(gap)
            _mark(session, losses)
        return True

    def _notice(self, session: Session, gap: Gap, now: float) -> Message | None:
        """The message about *gap*; None if *session* has not subscribed to it, or its client accepts nothing so large.

        A notice that is too large must not be offered: it would be a loss itself.
        """
        subscriptions = self._subscriptions(session)
        if not subscriptions:
            return None
        qos = max([subscription.qos for subscription in subscriptions])
        identifiers = b"".join([subscription.identifiers for subscription in subscriptions])
        readable = all(self._may_receive(session, topic) for topic in gap.topics or [])
        for payload in (gap.json(readable), gap.json(False)):
            notice = Message(gap_topic(session.client_id), payload, qos, False, identifiers, NEVER)
            if not session.maximum_packet or notice.length(session.version, now) <= session.maximum_packet:
                return notice
        return None

    def _milliseconds(self) -> int:
        return int(self._wall() * 1000)


def _is_due(losses: Losses, now: float) -> bool:
    """Whether the client is to be told of something that it lost."""
    return now >= losses.told_at + PAUSE and losses.lost() > 0


def _begin(session: Session, losses: Losses, now: float) -> None:
    """Have the client of *session*, which is connected, told with its next delivery, if there is something to tell."""
    out = session.outbox
    if losses.unmarked is not None:
        _mark(session, losses)
    if out is not None and (losses.unmarked is not None or _is_due(losses, now)):
        out.begin_aside()


def _mark(session: Session, losses: Losses) -> None:
    """Have the next message of *session* marked."""
    if not isinstance(session.aliases, GapMarks):
        session.aliases = GapMarks(losses, session.aliases)
