import pytest

from broker.routing.levels import Level, LevelTree


def children(level: Level) -> list[bytes]:
    names: list[bytes] = []
    child = level.after(None)
    while child is not None:
        names.append(child.name)
        child = level.after(child)
    return names


def test_siblings_keep_their_order_when_some_go() -> None:
    """A walk would miss or repeat children after removals at the front, in the middle or at the end."""
    tree = LevelTree()
    for path in (b"a", b"b", b"c", b"d", b"e"):
        tree.add(path)
    for path in (b"c", b"a", b"e"):
        tree.remove(path)
    tree.add(b"f")

    assert [b"b", b"d", b"f"] == children(tree.root)
    assert 3 == tree.levels
    assert [None, b"d"] == [child and child.name for child in (tree.root.child(b"a"), tree.root.child(b"d"))]


def test_a_walk_goes_on_from_a_removed_child() -> None:
    """A scan that paused at a topic which is deleted would end early, or begin again."""
    tree = LevelTree()
    for path in (b"a", b"b", b"c", b"d"):
        tree.add(path)
    at = tree.root.child(b"c")
    for path in (b"c", b"b"):
        tree.remove(path)

    after = tree.root.after(at)

    assert after is not None and b"d" == after.name
    tree.remove(b"a")
    assert after is tree.root.after(at)
    tree.remove(b"d")
    assert tree.root.after(at) is None


def test_what_is_removed_leads_to_nothing_that_came_after_it() -> None:
    """A walk that pauses would keep every level that comes and goes meanwhile, the one by the other."""
    tree = LevelTree()
    for path in (b"a", b"b", b"c"):
        tree.add(path)
    at = tree.root.child(b"b")
    tree.remove(b"b")
    assert at is not None and at._next is None

    tree.remove(b"c")
    assert tree.root._by_name is None  # as most levels have one child, most of them need no dict


def test_a_path_within_a_path_stays() -> None:
    """Removing a topic would remove those below it, or leave it to be found."""
    tree = LevelTree()
    tree.add(b"a/b")
    tree.add(b"a")
    tree.remove(b"a")

    level = tree.root.child(b"a")
    assert level is not None and b"" == level.path and [b"b"] == children(level)
    tree.add(b"a")
    tree.remove(b"a/b")
    assert 1 == tree.levels


def test_an_unknown_path_is_the_callers_mistake() -> None:
    """A tree that has lost step with its owner would go on unnoticed."""
    with pytest.raises(KeyError):
        LevelTree().remove(b"a")
