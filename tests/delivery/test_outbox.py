import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.outbox import GATHER, LEAST, REPLY_ROOM, OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.reasons import DropReason

AMPLE = 1 << 40


def outbox(high: int = AMPLE, low: int = 0, budget: OutboundBudget | None = None) -> Outbox:
    return Outbox(0, high, low, budget or OutboundBudget(AMPLE), Ring())


def send(box: Outbox, count: int) -> bool:
    """The kernel takes *count* bytes; true if that made the box writable."""
    became = False
    while count:
        size = min(count, len(box.gather()))
        became = box.sent(size, 0.0) or became
        count -= size
    return became


# None: as much as was gathered. Sizes around GATHER, and around those of small packets.
SIZES = st.integers(1, 20) | st.sampled_from([GATHER // 2, GATHER - 1, GATHER, GATHER + 1])
STEPS = st.lists(st.tuples(st.just("write"), SIZES) | st.tuples(st.just("send"), SIZES | st.none()), max_size=25)


@given(STEPS)
def test_any_writes_and_any_partial_sends_give_the_same_bytes(steps: list[tuple[str, int | None]]) -> None:
    """A byte would be lost, repeated or moved when the kernel takes less than it is offered."""
    budget = OutboundBudget(AMPLE)
    box = outbox(budget=budget)
    written, left = bytearray(), bytearray()
    for action, count in steps:
        if action == "write" and count is not None:
            chunk = bytes((len(written) + i) % 251 for i in range(min(count, 40))).ljust(count, b"%d" % (count % 7))
            box.write(chunk)
            written += chunk
        elif box.size:
            data = box.gather()
            taken = len(data) if count is None else min(count, len(data))
            left += data[:taken]
            box.sent(taken, 0.0)
        assert len(written) - len(left) == box.size == budget.used

    while box.size:
        data = box.gather()
        left += data
        box.sent(len(data), 0.0)

    assert written == left
    assert 0 == budget.used


def test_what_is_gone_takes_no_room() -> None:
    """A reader that never takes all at once would cost what it was ever sent, copied with each send."""
    for size in (GATHER // 2, GATHER * 2):
        box = outbox()
        box.write(bytes(size))
        tracemalloc.start()
        try:
            for _ in range(200):
                box.write(bytes(10_000))
                send(box, 10_000)
            now = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

        assert size == box.size
        assert now < size + GATHER


def test_what_a_tick_appends_leaves_in_one_piece() -> None:
    """Each packet would cost a system call."""
    box = outbox()
    for number in range(100):
        box.write(b"%02d" % number)

    assert b"".join(b"%02d" % number for number in range(100)) == box.gather()


def test_a_piece_is_bounded() -> None:
    """A slow reader's whole buffer would be copied for every send."""
    box = outbox()
    for _ in range(10):
        box.write(b"x" * (GATHER // 4))

    assert GATHER == len(box.gather())
    box.sent(GATHER // 2, 0.0)
    assert GATHER == len(box.gather())


def test_a_chunk_larger_than_a_piece_is_not_copied() -> None:
    """A large message to many receivers would be copied for each of them."""
    box = outbox()
    chunk = b"x" * (GATHER + 1)
    box.write(chunk)
    box.write(b"y")

    assert chunk is box.gather()
    box.sent(GATHER, 0.0)
    assert b"xy" == bytes(box.gather())


def test_the_first_write_asks_for_a_flush() -> None:
    """What was written would never leave, or its connection be flushed once for each packet."""
    dirty: Ring[Outbox] = Ring()
    box = Outbox(0, AMPLE, 0, OutboundBudget(AMPLE), dirty)
    box.write(b"a")
    box.write(b"b")

    assert 1 == dirty.count and dirty.popleft() is box and box.queued
    box.queued = False
    box.write(b"c")
    assert 1 == dirty.count and dirty.popleft() is box


def test_a_reader_is_slow_over_the_high_mark_and_quick_again_at_the_low_one() -> None:
    """A reader at its limit would flap between slow and quick with every packet."""
    box = outbox(high=10, low=4)
    box.write(b"x" * 10)
    assert box.writable

    box.write(b"x")
    assert not box.writable
    assert not send(box, 6)
    assert not box.writable
    assert send(box, 1)
    assert box.writable
    assert not send(box, 4)  # it was told once


MOVES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.booleans()), max_size=60)


@given(MOVES)
def test_slow_readers_are_counted_as_they_come_and_go(moves: list[tuple[int, int, bool]]) -> None:
    """The number of slow readers would drift away from the truth, for as long as the worker lives."""
    budget = OutboundBudget(60)  # so that others make one slow, too
    boxes = [outbox(10, 4, budget) for _ in range(3)]
    became = 0
    for which, count, gone in moves:
        box = boxes[which]
        before = box.writable
        if gone:
            box.discard()
            boxes[which] = outbox(10, 4, budget)
            continue
        if count % 2 and box.size:
            box.sent(min(count, len(box.gather())), 0.0)
        else:
            box.write(bytes(count))
        became += before and not box.writable
        assert sum(not each.writable for each in boxes) == budget.non_writable

    assert became == budget.became_non_writable


def test_a_reader_that_stays_under_the_high_mark_is_never_slow() -> None:
    """Whoever waits for room would be called for nothing after each send."""
    box = outbox(high=10, low=4)
    for _ in range(5):
        box.write(b"x" * 8)
        assert box.writable
        assert not send(box, 8)


def test_write_takes_what_is_over_the_high_mark() -> None:
    """Acknowledgements and pings of a slow reader would be lost, and it would close."""
    box = outbox(high=10)
    box.write(b"x" * 11)
    box.write(b"pong")

    assert b"x" * 11 + b"pong" == box.gather()


def test_a_reply_backlog_begins_far_over_the_high_mark() -> None:
    """A client that sends and does not read would have us hold its answers without end, or be stopped too soon."""
    box = outbox(high=10)
    box.write(b"x" * (10 + REPLY_ROOM))
    assert not box.reply_backlog()

    box.write(b"x")
    assert box.reply_backlog()
    send(box, 1)
    assert not box.reply_backlog()


def test_a_reply_backlog_begins_earlier_when_the_budget_is_nearly_used() -> None:
    """Clients that send and do not read would together use up the worker's memory, or those who owe little be held."""
    budget = OutboundBudget(5 * LEAST)
    modest, greedy, other = (outbox(budget=budget) for _ in range(3))
    modest.write(b"x" * (LEAST - 1))
    greedy.write(b"x" * (LEAST + 1))
    assert greedy.writable and not greedy.reply_backlog()

    other.write(b"x" * LEAST)
    assert not greedy.reply_backlog()  # it is writable, so nobody would be told when it has room again
    greedy.write(b"x")
    modest.write(b"x")

    assert [False, True] == [box.reply_backlog() for box in (modest, greedy)]
    other.discard()
    modest.discard()
    assert not greedy.reply_backlog()


def test_many_small_answers_are_held_as_one() -> None:
    """A client that does not read its acknowledgements would cost ten times what it is owed."""
    box = outbox()
    sent = 6000
    tracemalloc.start()
    try:
        for number in range(sent):
            box.write(b"%04d" % number)
        box.sent(1, 0.0)
        before = tracemalloc.get_traced_memory()[0]
        assert not box.reply_backlog()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert after < before / 5
    assert b"".join([b"%04d" % number for number in range(sent)])[1:] == box.gather()


def test_the_fuller_the_budget_the_less_each_reader_may_owe() -> None:
    """A few slow readers would use up the worker's memory, or lock out those who owe little."""
    budget = OutboundBudget(1000)
    large, small = outbox(budget=budget), outbox(budget=budget)
    large.write(b"x" * 333)
    assert large.writable
    large.write(b"x" * 10)  # more than half of what is free then
    assert not large.writable

    small.write(b"x" * 200)
    assert small.writable
    small.write(b"x" * 50)

    assert not small.writable
    assert 593 == budget.used


def test_in_a_full_budget_only_who_owes_nothing_is_writable() -> None:
    """Readers would be filled further although the worker has no room for it, or never again."""
    budget = OutboundBudget(100)
    large, small = outbox(budget=budget), outbox(low=20, budget=budget)
    large.write(b"x" * 150)  # a single write may go over it
    small.write(b"x" * 10)
    assert not large.writable and not small.writable

    assert not send(small, 5)
    assert send(small, 5)
    assert small.writable


def test_room_in_the_budget_makes_a_reader_writable_that_is_under_its_low_mark() -> None:
    """A reader would stay slow after others have freed the budget."""
    budget = OutboundBudget(100)
    large, small = outbox(budget=budget), outbox(low=20, budget=budget)
    large.write(b"x" * 90)
    small.write(b"x" * 10)
    assert not send(small, 1)

    large.discard()

    assert send(small, 1)


def test_a_connection_that_ends_gives_its_bytes_back() -> None:
    """The budget would shrink with each connection that ends, until nobody is writable."""
    budget = OutboundBudget(1000)
    box = outbox(budget=budget)
    box.write(b"abc")
    box.write(b"def")
    send(box, 2)

    assert 4 == box.discard()

    assert (0, 0) == (box.size, budget.used)
    assert not box.writable
    assert 0 == box.discard()


class FixedLimit:
    """Allows *left* messages."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.paid: list[tuple[int, int]] = []

    def refusal(self) -> DropReason | None:
        return None if self.left > 0 else DropReason.QUOTA_SESSION_OUTGOING

    def charge(self, messages: int, size: int) -> None:
        self.left -= messages
        self.paid.append((messages, size))


def test_with_an_egress_limit_each_delivery_is_asked_for_and_charged() -> None:
    """A client with an outgoing quota is sent more than that, or charged for what it was not sent."""
    box = outbox()
    limit = FixedLimit(3)
    box.set_egress_limit(limit)
    box.write(b"an answer")  # which nobody asks for
    assert not box.writable and box.accepts_delivery()

    for count, size in ((2, 10), (0, 0), (4, 9)):
        assert box.begin_delivery(100) is None and box.writable
        if size:
            box.write(bytes(size))
        box.end_delivery(100 + count)
        assert not box.writable
    assert [(2, 10), (0, 0), (4, 9)] == limit.paid
    assert DropReason.QUOTA_SESSION_OUTGOING is box.begin_delivery(106)
    assert not box.writable and not box.accepts_delivery()


def test_with_an_egress_limit_a_slow_reader_is_slow_and_then_asked_for_again() -> None:
    """Its outbox grows without end; or, once it has drained, the limit is not asked any more."""
    budget = OutboundBudget(AMPLE)
    box = outbox(10, 5, budget)
    box.set_egress_limit(FixedLimit(100))
    assert 0 == budget.non_writable
    assert box.begin_delivery(0) is None
    box.write(bytes(11))
    box.end_delivery(1)

    assert (1, True) == (budget.non_writable, box.full)
    assert DropReason.NOT_WRITABLE is box.begin_delivery(1)
    assert send(box, 11)
    assert (0, False, False) == (budget.non_writable, box.full, box.writable)
    assert box.accepts_delivery()
    box.discard()
    assert 0 == budget.non_writable


class FixedPace:
    """Lets *left* messages go that waited."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.paid: list[tuple[int, int]] = []
        self.ended = False

    def allows(self) -> bool:
        return self.left > 0

    def charge(self, messages: int, size: int) -> None:
        self.left -= messages
        self.paid.append((messages, size))

    def over(self) -> None:
        self.ended = True


def test_a_pace_is_asked_for_what_waited_alone() -> None:
    """A client that catches up would miss what is published now, or be sent what waited at once."""
    box = outbox()
    pace = FixedPace(1)
    box.set_pace(pace)
    assert box.begin_queued(100)
    box.write(bytes(10))
    box.end_queued(101, 7)
    assert not box.begin_queued(101) and not box.writable
    assert box.accepts_delivery() and box.begin_delivery(101) is None
    box.write(bytes(5))
    box.end_delivery(102)

    assert ([(1, 10)], False) == (pace.paid, pace.ended)
    pace.left = 1
    assert box.begin_queued(102)
    box.end_queued(103, 0)
    assert pace.ended


def test_a_pace_holds_until_it_ends_whatever_else_does() -> None:
    """A slow reader that has drained, or whose quota has gone, would be sent all that waited at once."""
    box = outbox(10, 5)
    box.set_pace(FixedPace(9))
    box.set_egress_limit(FixedLimit(9))
    assert box.begin_queued(0)
    box.write(bytes(11))
    box.end_queued(1, 1)
    assert not box.begin_queued(1) and DropReason.NOT_WRITABLE is box.begin_delivery(1)
    assert send(box, 11)
    assert not box.writable
    box.end_egress_limit()
    assert not box.writable and box.begin_queued(1)
    box.end_queued(1, 1)
    box.end_pace()
    assert box.writable
    box.set_pace(FixedPace(9))
    box.write(bytes(11))
    box.end_pace()
    assert not box.writable
