# Members of a shared subscription at one worker, in the order of their turns.
from typing import cast

from broker.session.subscription import Subscription


class Member:
    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.ring: MemberRing | None = None
        self.durable = False  # its session stores what it is offered
        self.before: Member | None = None  # in its ring
        self.after: Member | None = None


class MemberRing:
    """A linked list of members in the order of their turns. All operations are O(1)."""

    def __init__(self) -> None:
        self.count = 0
        self.turn: Member | None = None
        self.next_check: Member | None = None  # the member whose state is checked next

    def add(self, member: Member) -> None:
        """Add *member*; all others have their turn before it."""
        turn = self.turn
        member.ring = self
        self.count += 1
        if turn is None:
            self.turn = self.next_check = member.before = member.after = member
            return
        last = cast(Member, turn.before)
        member.before, member.after = last, turn
        last.after = turn.before = member

    def remove(self, member: Member) -> None:
        before, after = cast(Member, member.before), cast(Member, member.after)
        before.after, after.before = after, before
        member.ring = member.before = member.after = None  # no cycle for the collector
        self.count -= 1
        if self.turn is member:
            self.turn = after if self.count else None
        if self.next_check is member:
            self.next_check = after if self.count else None
