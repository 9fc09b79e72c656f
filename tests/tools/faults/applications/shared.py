# The judge of groups of clients whose sessions last: of what was acknowledged, some member of each group got each
# message, and at QoS 2 one member got it, once.
#
# Members never start clean, so what a group is owed is what was published behind the first SUBACK of any of them. What
# has an expiry is owed to nobody. After a loss of power nothing is judged: a group may have begun anew.
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.tools.faults.durable.history import ERROR, Answered, Event, Message, Received, Rollback, Sent, Subscribed

LOST: Final = "shared lost"  # verdicts
DOUBLED: Final = "shared doubled"


@dataclass
class Group:
    """*members* share messages on topics that begin with *start*."""

    start: str
    members: Sequence[str]
    once: bool = True  # no two members get the same message of QoS 2: what they get is of QoS 2
    began: int | None = None  # the place of the first SUBACK in the history
    open: dict[Message, None] = field(default_factory=dict)  # what it is owed and has not got
    got: dict[Message, set[str]] = field(default_factory=lambda: defaultdict(set))  # who got each message


class SharedJudge:
    def __init__(self, groups: Mapping[str, Group]) -> None:
        self.groups: Final = dict(groups)
        self.rolled_back = False
        self._sent: dict[Message, tuple[str, int, int]] = {}
        self._place = 0
        self._group_of = {member: group for group in groups.values() for member in group.members}

    def add(self, name: str, group: Group) -> None:
        """Judge *group* as well, from now on."""
        self.groups[name] = group
        self._group_of |= dict.fromkeys(group.members, group)

    def take(self, event: Event) -> None:
        self._place += 1
        group = self._group_of.get(event.client)
        match event:
            case Subscribed() if group is not None and group.began is None:
                group.began = self._place
            case Sent() if not event.expiry:
                self._sent.setdefault((event.client, event.number), (event.topic, event.qos, self._place))
            case Answered() if event.code < ERROR and (event.client, event.number) in self._sent:
                self._acknowledged((event.client, event.number))
            case Received() if group is not None:
                group.got[event.message].add(event.client)
                group.open.pop(event.message, None)
            case Rollback():
                self.rolled_back = True

    def missing(self) -> list[tuple[str, Message]]:
        """(group, message) of what was owed and has not come."""
        if self.rolled_back:
            return []
        return [(name, message) for name, group in self.groups.items() for message in group.open]

    def complete(self) -> bool:
        """Nothing is `missing()`; asked at each turn of a run, while there may be very much."""
        return self.rolled_back or not any(group.open for group in self.groups.values())

    def doubled(self) -> list[tuple[str, Message, Iterable[str]]]:
        """(group, message, members) of what came to two members with QoS 2."""
        if self.rolled_back:
            return []
        return [
            (name, message, sorted(members))
            for name, group in self.groups.items()
            if group.once
            for message, members in group.got.items()
            if len(members) > 1 and self._sent.get(message, ("", 0, 0))[1] == 2
        ]

    def delivered(self) -> int:
        """Messages, once for each group that got it."""
        return sum(len(group.got) for group in self.groups.values())

    def _acknowledged(self, message: Message) -> None:
        topic, _, place = self._sent[message]
        for group in self.groups.values():
            if group.began is not None and place > group.began and topic.startswith(group.start):
                if message not in group.got:
                    group.open[message] = None
