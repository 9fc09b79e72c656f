# What may differ when the broker is a node of several workers; everything else is as reference.py says.
#
# - Which member of a shared subscription gets a message: workers tell each other ten times a second how many members
#   they have that could take one at once. So of the messages of one step only the first is sure to find such a member
#   wherever it is, and a message of QoS 0 finds one that has room in its window, not one that is merely connected:
#   it does not wait, so it is not sought for long (routing/shared.py).
# - The order of messages of different publishers: they come by different workers. The reference leaves it open anyway.
# - Retained messages that a new subscription is owed: if the session moves to another worker meanwhile, they are sent
#   from the beginning (session/transfer/pages.py). Nothing says that they come only once.
# - Drops and other counters are those of each worker; their sums are what one worker would have counted.
# - What waits for a member of a shared subscription waits at one worker, and is passed to another one when that one
#   tells that it has a member that could take it (ten times a second). It is lost with the worker that it waits at,
#   if that worker has sessions: at one without sessions nothing waits.
# - A worker that dies takes its sessions with it. Their wills are published by another worker, not before the delay
#   that their clients asked for at CONNECT has passed since the death, and only if they are not back
#   (orphaned_wills.py); if the one that mourns dies as well, the delay begins anew.
# - For a client that comes to another worker while others publish there is no instant at which it is connected: what
#   would not have waited for it (QoS 0) it may have received or not.
from collections.abc import Sequence
from typing import cast

from tests.model.reference import Model
from tests.model.sessions import Copy, Members, Message, Offer, Session, Share


class NodeOffer(Offer):
    uncertain = False  # it may have been dropped, for somebody who is coming, or with the worker that it waited at

    def explained(self, members: Members) -> bool:
        return self.uncertain or super().explained(members)

    def _takes_now(self, session: Session, copy: Copy) -> bool:
        return session.has_room() or (session.connected and copy.qos == 0 and copy.message.qos > 0)


class Left:
    """A will that is to be published for a dead worker."""

    def __init__(self, will: Message, worker: object, due: int) -> None:
        self.will = will
        self.worker = worker
        self.due = due  # second


class NodeModel(Model):
    def __init__(self, window: int) -> None:
        super().__init__(window)
        self._delays: dict[str, int] = {}  # of wills, as they were asked for
        self._left: dict[str, Left] = {}  # by those whose worker died
        self._first = True  # no message was offered in this step yet

    def connect(
        self,
        name: str,
        version: int,
        clean: bool,
        expiry: int,
        window: int,
        will: Message | None,
        will_delay: int,
    ) -> bool:
        self._left.pop(name, None)
        self._delays[name] = min(will_delay, expiry)
        return super().connect(name, version, clean, expiry, window, will, will_delay)

    def move(self, name: str) -> None:
        """The session goes to another worker."""
        for replay in self.sessions[name].replays:
            replay.seen.clear()

    def die(self, names: list[str], worker: object, mourned: Sequence[object]) -> None:
        """*worker* is dead, with the sessions *names*; whom it mourned for is mourned anew, delays as well."""
        for name in names:
            session = self.sessions.pop(name)
            session.ended = True
            session.connected = False
            if session.will is not None:
                self._left[name] = Left(session.will, worker, 0)
        for offer in self.offers:
            cast(NodeOffer, offer).uncertain |= bool(names)
        self._drop_for_groups_without_members()
        for name, left in self._left.items():
            if left.worker in mourned:
                left.due = self.now + self._delays[name]
        self._publish_left()

    def pass_second(self) -> None:
        super().pass_second()
        self._publish_left()

    def _publish_left(self) -> None:
        for name, left in list(self._left.items()):
            if left.due <= self.now:
                del self._left[name]
                self.publish(left.will)

    def check_settled(self) -> None:
        super().check_settled()
        self._first = True

    def check_reached(self, names: list[str]) -> None:
        """These, all at workers that are served, have what they are owed, but for shared subscriptions."""
        for name in names:
            session = self.sessions[name]
            late = [copy for copy in session.owed if copy.lives(self.now) and (copy.qos == 0 or session.has_room())]
            assert not late, f"{name} did not receive {late}, though its worker is well"

    def _offer(self, shares: list[Share], message: Message, expires: int, owed: set[Session]) -> Offer:
        offer = NodeOffer(shares, message, expires, owed)
        coming = {session for share in shares for session in share.copies if session.coming}
        offer.uncertain = any(copy.qos == 0 for share in shares for one in coming for copy in share.copies.get(one, ()))
        offer.fresh = self._first and not any(session.coming for session in self.sessions.values())
        self._first = False
        return offer
