# The tree of levels, which resolves wildcards.
#
# A topic or filter is a path of levels. The tree has two users with opposite questions: the filter index keeps
# wildcard filters in it and walks them with a topic ("+" and "#" are levels like any other, found by name); the
# retained messages keep topics in it and walk them with a filter.
#
# - No function recurses: a path of thousands of levels costs memory, never stack.
# - A level below which no path ends is removed at once, so an empty tree has no levels.
# - Siblings are a linked list in the order of their addition, so that a walk can pause between any two of them and
#   the tree may change meanwhile, see `after`. Copying the children when a walk begins would cost 800 KB for each
#   client that waits for a page of 100 000 topics.
# - Most levels have one child; the dict by name is made for the second.
from broker.routing.sizes import LEVEL, NAME


class Level:
    """One level of one path; the root has no name."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.path = b""  # the path that ends here; empty if none does, as a path has a character [MQTT-4.7.3-1]
        self.first: Level | None = None  # the oldest child
        self._last: Level | None = None
        self._by_name: dict[bytes, Level] | None = None  # from the second child on
        self._previous: Level | None = None
        self._next: Level | None = None
        self._removed = False

    def child(self, name: bytes) -> "Level | None":
        if self._by_name is not None:
            return self._by_name.get(name)
        only = self.first
        return only if only is not None and only.name == name else None

    def after(self, child: "Level | None") -> "Level | None":
        """The child that follows *child*; the first child for None.

        If *child* has been removed meanwhile, the walk goes on after the child that preceded it and is still there. So
        a walk misses no child that was there all the time, and visits none twice.
        """
        while child is not None and child._removed:
            child = child._previous
        return self.first if child is None else child._next

    def append(self, name: bytes) -> "Level":
        child = Level(name)
        last = self._last
        if last is None:
            self.first = child
        else:
            if self._by_name is None:
                self._by_name = {last.name: last}
            self._by_name[name] = child
            child._previous = last
            last._next = child
        self._last = child
        return child

    def unlink(self, child: "Level") -> None:
        before, behind = child._previous, child._next
        if before is None:
            self.first = behind
        else:
            before._next = behind
        if behind is None:
            self._last = before
        else:
            behind._previous = before
        if self._by_name is not None:
            del self._by_name[child.name]
            if len(self._by_name) == 1:
                self._by_name = None
        child._removed = True
        child._next = None  # it refers to what preceded it, and nothing refers to it: no cycle for the collector


class LevelTree:
    def __init__(self) -> None:
        self.root = Level(b"")
        self.levels = 0  # their number, without the root
        self.text = 0  # bytes of their names, as name_size() counts them

    def add(self, path: bytes) -> None:
        """Add *path*, if it is not there. O(levels)."""
        level = self.root
        for name in path.split(b"/"):
            below = level.child(name)
            if below is None:
                below = level.append(name)
                self.levels += 1
                self.text += name_size(name)
            level = below
        level.path = path

    def size(self) -> int:
        """The memory that the levels take, in bytes."""
        return LEVEL * self.levels + self.text

    def remove(self, path: bytes) -> None:
        """Remove *path*, which must be there, and every level that only it needed. O(levels)."""
        level = self.root
        trail: list[Level] = []
        for name in path.split(b"/"):
            below = level.child(name)
            if below is None:
                raise KeyError(path)
            trail.append(level)
            level = below
        level.path = b""
        while trail and not level.path and level.first is None:
            above = trail.pop()
            above.unlink(level)
            self.levels -= 1
            self.text -= name_size(level.name)
            level = above


def path_size(path: bytes) -> int:
    """The memory that the levels of *path* take, if it shares none with others."""
    size = 0
    for name in path.split(b"/"):
        size += LEVEL + name_size(name)
    return size


def name_size(name: bytes) -> int:
    """The memory that the name of a level takes."""
    return NAME + len(name) if len(name) > 1 else 0
