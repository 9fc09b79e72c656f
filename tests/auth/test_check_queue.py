# The queue of passwords that wait to be checked: who is next, and who loses its place.
from broker.auth.check_queue import TURNS, CheckQueue, Waiting


def queue(*keys: str, failing: str = "", limit: int = 1000, failing_limit: int = 1000) -> CheckQueue:
    """A queue with a check of each of *keys*, the first one offered first; *failing* names those that fail."""
    made = CheckQueue(limit, failing_limit)
    for key in keys:
        assert made.offer(Waiting(key), key in failing) is None
    return made


def order(made: CheckQueue, count: int) -> str:
    found = [made.next() for _ in range(count)]
    return "".join("-" if one is None else one.key for one in found)


def test_addresses_take_turns() -> None:
    """Whoever asks most often would be checked, and nobody else in time."""
    assert "abcabaa-" == order(queue(*"aaaabbc"), 8)


def test_a_newcomer_waits_for_one_check_of_each_address() -> None:
    """A new client would wait behind all passwords of an attacker."""
    made = queue(*"a" * 400)
    made.offer(Waiting("b"), False)

    assert "ab" == order(made, 2)


def test_addresses_that_fail_wait_behind_all_others_and_still_get_turns() -> None:
    """An attacker with many addresses would delay everybody; or one broken device lock out all others of its NAT."""
    made = queue(*"xyz" * 10, *"ab" * 10, failing="xyz")
    served = order(made, 2 * TURNS)

    assert "abababaxbabababy" == served
    assert "z" == order(queue(*"z", failing="z"), 1)


def test_an_address_that_begins_to_fail_loses_its_rank() -> None:
    """What an attacker has queued before its first failure would be served first."""
    made = queue(*"xxxa")
    assert "x" == order(made, 1)
    made.offer(Waiting("x"), True)

    assert "axxx-" == order(made, 5)
    assert 0 == len(made)


def test_the_longest_queue_loses_its_newest_when_the_queue_is_full() -> None:
    """An attacker would fill the queue, and all others be refused."""
    made = queue(*"aaab", limit=4)
    last = Waiting("a")
    assert made.offer(last, False) is last
    displaced = made.offer(Waiting("c"), False)

    assert displaced is not None and "a" == displaced.key
    assert (4, "abca-") == (len(made), order(made, 5))


def test_an_address_that_fails_loses_its_place_first() -> None:
    """A fleet behind a NAT would be refused for the sake of an attacker."""
    made = queue(*"aaax", failing="x", limit=4)
    displaced = made.offer(Waiting("a"), False)

    assert displaced is not None and "x" == displaced.key


def test_an_address_that_fails_may_have_few_checks() -> None:
    """Work that is refused in the end would use up the memory of the queue."""
    made = queue(*"xxx", failing="x", failing_limit=3)
    more = Waiting("x")

    assert made.offer(more, True) is more
    assert 3 == len(made)


def test_a_client_that_has_gone_leaves_nothing() -> None:
    """Passwords would be hashed for nobody, or the queue grow by clients that come and go."""
    made = CheckQueue()
    for _ in range(3):
        one = Waiting("a")
        made.offer(one, False)
        made.remove(one)
        made.remove(one)

    assert (0, "-") == (len(made), order(made, 1))
