# The filter index: the subscribers whose filters match a topic.
#
# One dict from filter to its subscribers answers for exact filters with a single look-up. Filters with
# wildcards are in the same dict, and their paths also in a tree of levels: a match finds the wildcard filters in
# the tree and their subscribers in the dict. Adding or removing a subscriber changes the tree only for the first
# or last one of a filter.
#
# Most filters have one subscriber, which the dict then contains directly; a container is made for the second. It is
# a dict used as an ordered set: adding and removing cost the same with twenty thousand subscribers as with two.
#
# Names are expected to be valid: a topic has no wildcards, a filter has them only as whole levels and "#" only at
# the end, and a shared filter comes without "$share/name/".
from typing import Final

from broker.routing.levels import Level, LevelTree, path_size
from broker.routing.sizes import CROWD, ENTRY, FILTER
from broker.session.subscriber import Subscriber

ANY_LEVEL: Final = b"+"
ANY_LEVELS: Final = b"#"


class FilterIndex:
    def __init__(self) -> None:
        self._subscribers: dict[bytes, Subscriber | dict[Subscriber, None]] = {}
        self._wildcards = LevelTree()
        self._count = 0
        self._crowds = 0  # filters with several subscribers
        self._text = 0  # bytes of the filters
        self.visited = 0  # levels of the tree that the last match reached

    def add(self, filter: bytes, subscriber: Subscriber) -> bool:
        """Add *subscriber*, if it is not there; true if it is the first of *filter*. O(1), O(levels) for the first."""
        present = self._subscribers.get(filter)
        if present is None:
            self._subscribers[filter] = subscriber
            self._count += 1
            self._text += len(filter)
            if is_wildcard(filter):
                self._wildcards.add(filter)
            return True
        if isinstance(present, Subscriber):
            if present is not subscriber:
                self._subscribers[filter] = {present: None, subscriber: None}
                self._count += 1
                self._crowds += 1
        elif subscriber not in present:
            present[subscriber] = None
            self._count += 1
        return False

    def remove(self, filter: bytes, subscriber: Subscriber) -> bool:
        """Remove *subscriber*, if it is there; true if it was the last of *filter*. O(1), O(levels) for the last."""
        present = self._subscribers.get(filter)
        if present is None:
            return False
        if isinstance(present, Subscriber):
            if present is not subscriber:
                return False
            del self._subscribers[filter]
            self._count -= 1
            self._text -= len(filter)
            if is_wildcard(filter):
                self._wildcards.remove(filter)
            return True
        if subscriber in present:
            del present[subscriber]
            self._count -= 1
            if len(present) == 1:
                self._subscribers[filter] = next(iter(present))
                self._crowds -= 1
        return False

    def match(self, topic: bytes) -> list[Subscriber]:
        """The subscribers of all filters that match [MQTT-3.3.2-3], each once for every filter of its own that does.

        `visited` is then what it cost: at most one level of the tree for each pattern of the filters, and one for each
        level of *topic* (patterns.py).
        """
        found: list[Subscriber] = []
        self._gather(topic, found)
        reached = [self._wildcards.root]
        self.visited = 0
        # Wildcards at the first level do not match a topic that begins with "$" [MQTT-4.7.2-1].
        wild = not topic.startswith(b"$")
        for name in topic.split(b"/"):
            self.visited += len(reached)
            further: list[Level] = []
            for level in reached:
                if wild:
                    rest = level.child(ANY_LEVELS)
                    if rest is not None:
                        self._gather(rest.path, found)
                    below = level.child(ANY_LEVEL)
                    if below is not None:
                        further.append(below)
                below = level.child(name)
                if below is not None:
                    further.append(below)
            if not further:
                return found
            reached = further
            wild = True
        for level in reached:
            self._gather(level.path, found)
            rest = level.child(ANY_LEVELS)  # "a/#" matches "a", its parent, too (4.7.1.2)
            if rest is not None:
                self._gather(rest.path, found)
        return found

    def _gather(self, filter: bytes, found: list[Subscriber]) -> None:
        present = self._subscribers.get(filter)
        if present is None:  # no exact filter, or a level of the tree where no filter ends
            return
        if isinstance(present, Subscriber):
            found.append(present)
        else:
            found.extend(present)

    def has(self, filter: bytes) -> bool:
        """Whether *filter* has a subscriber."""
        return filter in self._subscribers

    def names(self) -> list[bytes]:
        """The distinct filters."""
        return list(self._subscribers)

    def filters(self) -> int:
        """The number of distinct filters."""
        return len(self._subscribers)

    def subscribers(self) -> int:
        """The number of pairs of a filter and a subscriber."""
        return self._count

    def size(self) -> int:
        """The memory that the filters take, in bytes."""
        return FILTER * len(self._subscribers) + self._text + self._wildcards.size()

    def crowd_size(self) -> int:
        """The memory that containers of several subscribers take, in bytes."""
        entries = self._count - len(self._subscribers) + self._crowds
        return CROWD * self._crowds + ENTRY * entries


def filter_size(filter: bytes) -> int:
    """The bytes of an index with *filter* alone."""
    size = FILTER + len(filter)
    return size + path_size(filter) if is_wildcard(filter) else size


def is_wildcard(filter: bytes) -> bool:
    return ANY_LEVEL in filter or ANY_LEVELS in filter


def matches(filter: bytes, topic: bytes) -> bool:
    """Whether *filter* matches *topic*; O(levels)."""
    if filter == topic:
        return True
    if topic.startswith(b"$") and filter.startswith((ANY_LEVEL, ANY_LEVELS)):  # [MQTT-4.7.2-1]
        return False
    wanted = filter.split(b"/")
    levels = topic.split(b"/")
    if wanted[-1] == ANY_LEVELS:
        wanted.pop()
        if len(levels) < len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    return all(name in (ANY_LEVEL, level) for name, level in zip(wanted, levels, strict=False))


def first_level(name: bytes) -> bytes:
    """The first level of a topic or filter; empty when it begins with "/"."""
    end = name.find(b"/")
    return name if end < 0 else name[:end]
