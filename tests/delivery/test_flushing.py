# Time is a number here: the tests say what it is, and how busy the worker was.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.flushing import (
    CROSSING_HOLD,
    DOUBTS,
    ENOUGH,
    ENOUGH_BYTES,
    GAP,
    LANE_ENOUGH,
    LANE_HOLD,
    PAUSE,
    SLACK,
    WINDOW,
    Flushing,
)
from broker.delivery.outbox import ADAPTIVE, BRIEF, BUFFERED, OutboundBudget, Outbox
from broker.delivery.ring import Ring

AMPLE = 1 << 40
HOLD = 0.005
BUFFER = 0.2


class Edge:
    """What the reactor does with outboxes, without a socket: sends what is dirty and not held."""

    def __init__(self, most: int = 100, longest: float = HOLD) -> None:
        self.dirty: Ring[Outbox] = Ring()
        self.flushing = Flushing(self.dirty, longest=longest, buffered=BUFFER, most=most)
        self.now = 1000.0
        self.sent: list[tuple[Outbox, bytes]] = []

    def outbox(self, strategy: int, enough: int = 5) -> Outbox:
        box = Outbox(0, AMPLE, 0, OutboundBudget(AMPLE), self.dirty)
        box.strategy = strategy
        box.enough = enough
        return box

    def busy(self, share: float, windows: int = 50) -> None:
        """The worker has been busy for *share* of the time, as a rule for long enough to know it."""
        for _ in range(windows):
            self.now += 1.01 * WINDOW
            self.flushing.worked(1.01 * WINDOW * share, self.now)

    def tick(self, later: float = 0.0) -> list[bytes]:
        """What leaves at the end of a tick *later* seconds from now."""
        self.now += later
        if self.now >= self.flushing.due:
            self.flushing.release(self.now)
        left = []
        while self.dirty.count:
            box = self.dirty.popleft()
            box.queued = False
            if box.size and (box.pressing or not self.flushing.holds(box, self.now)):
                data = bytes(box.gather())
                if box.strategy != BRIEF:
                    self.flushing.sends(box, self.now)
                box.sent(len(data), self.now)
                left.append(data)
        return left

    def quick(self, strategy: int = ADAPTIVE) -> Outbox:
        """One that was sent to a moment ago."""
        box = self.outbox(strategy)
        box.write(b"before")
        assert [b"before"] == self.tick()
        return box


def test_a_calm_worker_holds_nothing() -> None:
    """Holding would cost latency when there is time for every send."""
    edge = Edge()
    edge.busy(0.04)
    box = edge.quick()
    box.write(b"a")

    assert [b"a"] == edge.tick(0.001)


def test_a_busy_worker_waits_for_more() -> None:
    """Each message to a reader of many would cost a send of its own just when there is no time for it."""
    edge = Edge()
    edge.busy(1.0)
    box = edge.quick()
    box.write(b"a")
    assert [] == edge.tick(0.001)
    box.write(b"b")
    assert [] == edge.tick(0.001)

    assert [b"ab"] == edge.tick(HOLD)
    assert 1 == edge.flushing.waited


def test_the_hold_grows_with_how_busy_it_is() -> None:
    """A worker would begin to hold all at once, and its clients see a step."""
    dues = []
    for share in (0.07, 0.1, 0.13, 0.9):
        edge = Edge()
        edge.busy(share)
        box = edge.quick()
        box.write(b"a")
        edge.tick()
        dues.append(edge.flushing.due - edge.now)

    assert dues == sorted(dues)
    assert 0 < dues[0] < dues[1] < dues[2] < dues[3] == pytest.approx(HOLD)


@pytest.mark.parametrize("longest", [HOLD, 0.4 * CROSSING_HOLD])
def test_what_has_crossed_is_held_for_less(longest: float) -> None:
    """A message that has waited for its lane and for Redis would wait as long again as one that has not."""
    edge = Edge(longest=longest)
    edge.busy(1.0)
    edge.flushing.crossed()
    edge.busy(1.0, windows=1)
    assert min(CROSSING_HOLD, longest) == pytest.approx(edge.flushing.hold())

    edge.busy(1.0)  # while none comes
    assert longest == pytest.approx(edge.flushing.hold())


def test_a_rest_is_noticed_at_once() -> None:
    """The first messages after a pause would be held for a load that was long ago."""
    edge = Edge()
    edge.busy(1.0)
    box = edge.quick()
    edge.now += 10.0
    edge.flushing.worked(0.0, edge.now)
    box.sent_at = edge.now
    box.write(b"a")

    assert [b"a"] == edge.tick()


def test_who_is_written_to_seldom_is_not_held() -> None:
    """A message of a reader of few would wait for company that does not come before the hold ends."""
    edge = Edge()
    edge.busy(1.0)
    box = edge.quick()
    box.write(b"a")
    assert [b"a"] == edge.tick(GAP + 0.0001)

    box.write(b"b")
    assert [] == edge.tick(GAP - 0.0001)


@pytest.mark.parametrize("pieces", [[b"x"] * ENOUGH, [b"x" * ENOUGH_BYTES]])
def test_who_has_enough_is_not_held(pieces: list[bytes]) -> None:
    """Waiting would save nothing any more."""
    edge = Edge()
    edge.busy(1.0)
    box = edge.quick()
    box.write(b"first")
    assert [] == edge.tick()
    for piece in pieces:
        box.write(piece)

    assert [b"first" + b"".join(pieces)] == edge.tick()
    assert 1 == edge.flushing.filled


def test_a_hold_that_nothing_joined_is_not_repeated_for_a_while() -> None:
    """In a closed loop, whose next message comes after this one was read, each round would wait in vain."""
    edge = Edge()
    edge.busy(1.0)
    box = edge.quick()
    box.write(b"alone")
    assert [] == edge.tick()
    assert [b"alone"] == edge.tick(HOLD)

    for _ in range(DOUBTS):
        box.write(b"next")
        assert [b"next"] == edge.tick(0.001)
    box.write(b"again")
    assert [] == edge.tick()


def test_a_hold_that_few_joined_is_not_repeated_either() -> None:
    """A reader of 500 messages a second would wait 5 ms for each, and hardly a send be saved."""
    edge = Edge()
    edge.busy(1.0)
    box = edge.quick()
    for piece in (b"a", b"b", b"c"):
        box.write(piece)
        assert [] == edge.tick(0.001)
    assert [b"abc"] == edge.tick(HOLD)

    box.write(b"next")
    assert [b"next"] == edge.tick(0.001)


def test_a_hold_that_was_joined_is_repeated() -> None:
    """A reader of many would be held once and then never again."""
    edge = Edge()
    edge.busy(1.0)
    box = edge.quick()
    for _ in range(3):
        for piece in (b"a", b"b", b"c"):
            box.write(piece)
            assert [] == edge.tick()
        box.write(b"d")
        assert [b"abcd"] == edge.tick(HOLD)


@pytest.mark.parametrize("strategy", [ADAPTIVE, BUFFERED])
def test_an_answer_is_never_held(strategy: int) -> None:
    """A client would wait for its acknowledgement, and stop sending meanwhile."""
    edge = Edge()
    edge.busy(1.0)
    box = edge.outbox(strategy)
    box.sent_at = edge.now
    box.write(b"message ")
    assert [] == edge.tick()
    box.answer(b"answer")

    assert [b"message answer"] == edge.tick()
    box.write(b"next")
    assert [] == edge.tick()


def test_buffered_goes_by_count_of_messages() -> None:
    """TBMQ's buffered-msg-count would mean something else here."""
    edge = Edge()
    box = edge.outbox(BUFFERED, enough=3)
    box.write(b"a")
    assert [] == edge.tick()
    box.write(b"b")
    assert [] == edge.tick(BUFFER / 2)
    box.write(b"c")
    assert [b"abc"] == edge.tick()

    box.write(b"a run of three")
    box.further += 2
    assert [b"a run of three"] == edge.tick()


def test_buffered_goes_some_time_after_its_first_message() -> None:
    """The last messages before a pause would never arrive, or each further one put them off."""
    edge = Edge()
    box = edge.outbox(BUFFERED)
    box.write(b"a")
    assert [] == edge.tick()
    box.write(b"b")
    assert [] == edge.tick(0.75 * BUFFER)

    assert [b"ab"] == edge.tick(0.26 * BUFFER)
    assert 1 == edge.flushing.waited


def test_too_many_that_are_held_send_the_oldest() -> None:
    """What is held would have no bound."""
    edge = Edge(most=2)
    boxes = [edge.outbox(BUFFERED) for _ in range(3)]
    for number, box in enumerate(boxes):
        box.write(b"%d" % number)

    assert [b"0"] == edge.tick()
    assert 1 == edge.flushing.evicted


def test_nobody_looks_after_a_hold_that_ended_with_others() -> None:
    """It would count as an answer, and each message cost a look at the kernel of its own from then on."""
    edge = Edge()
    box = joined(edge)
    other = edge.quick()
    other.joined = True
    edge.now += 0.4 * HOLD
    edge.flushing.worked(0.4 * HOLD, edge.now)
    other.write(b"o")
    assert [] == edge.tick()
    for piece in (b"b", b"c", b"d"):
        box.write(piece)
        assert [] == edge.tick()
    assert [b"abcd", b"o"] == edge.tick(0.6 * HOLD)
    edge.now += 0.5 * HOLD  # since `other` was answered
    box.write(b"a")
    assert [] == edge.tick()

    assert PAUSE == edge.flushing.pause(edge.now)


def test_a_lane_waits_briefly() -> None:
    """Each message to another node would be three wake-ups, or be as late on its way as at its reader."""
    edge = Edge()
    edge.busy(1.0)
    lane = edge.quick(BRIEF)
    lane.write(b"a")
    assert [] == edge.tick()
    lane.write(b"b")
    assert [] == edge.tick(0.9 * LANE_HOLD)

    assert [b"ab"] == edge.tick(0.11 * LANE_HOLD)


def test_a_lane_with_enough_does_not_wait() -> None:
    """Waiting would save nothing any more; but lanes have enough later than clients."""
    edge = Edge()
    edge.busy(1.0)
    lane = edge.quick(BRIEF)
    for _ in range(LANE_ENOUGH - 1):
        lane.write(b"x")
        assert [] == edge.tick()
    lane.write(b"x")

    assert [b"x" * LANE_ENOUGH] == edge.tick()


def test_what_lanes_wait_for_is_not_counted_with_clients() -> None:
    """`Reactor.flushes` counts sends to clients: fewer would be told than there were."""
    edge = Edge(most=1)
    edge.busy(1.0)
    lanes = [edge.quick(BRIEF) for _ in range(3)]
    for lane in lanes:
        lane.write(b"a")
    assert [b"a", b"a"] == edge.tick()  # as one alone may be held
    lanes[2].write(b"b" * ENOUGH_BYTES)
    edge.tick()
    lanes[0].doubts = 0
    lanes[0].write(b"a")
    assert [] == edge.tick()
    assert [b"a"] == edge.tick(LANE_HOLD)

    assert (0, 0, 0) == (edge.flushing.filled, edge.flushing.waited, edge.flushing.evicted)


def test_no_lane_waits_where_nobody_is_to() -> None:
    """An operator who sets the longest delay to 0 would have one all the same."""
    edge = Edge(longest=0.0)
    edge.busy(1.0)
    lane = edge.quick(BRIEF)
    lane.write(b"a")

    assert [b"a"] == edge.tick()


@pytest.mark.parametrize("strategy, hold", [(ADAPTIVE, HOLD), (BRIEF, LANE_HOLD)])
def test_who_has_waited_for_half_of_its_hold_leaves_with_others(strategy: int, hold: float) -> None:
    """Twenty readers would wake the worker at twenty times."""
    edge = Edge()
    edge.busy(1.0)
    first, second, third = boxes = [edge.quick(strategy) for _ in range(3)]
    for box in boxes:
        box.joined = True
    first.write(b"first")
    assert [] == edge.tick()
    second.write(b"second")
    assert [] == edge.tick(0.9 * SLACK * hold)
    third.write(b"third")
    assert [] == edge.tick(0.2 * SLACK * hold)

    assert [b"first", b"second"] == edge.tick((1 - 1.1 * SLACK) * hold)
    assert hold * 1.1 * SLACK == pytest.approx(edge.flushing.due - edge.now)
    second.write(b"again")
    assert [] == edge.tick()  # it had not had the time to be joined


def test_a_hold_that_ends_alone_is_not_repeated_for_a_while() -> None:
    """A brief hold would be repeated for ever that nothing joins."""
    edge = Edge()
    edge.busy(1.0)
    lane = edge.quick(BRIEF)
    lane.write(b"alone")
    assert [] == edge.tick()
    assert [b"alone"] == edge.tick(LANE_HOLD)
    lane.write(b"next")

    assert [b"next"] == edge.tick(LANE_HOLD / 2)


def test_while_only_lanes_wait_nobody_need_look_what_comes() -> None:
    """A worker whose clients only publish for other nodes would look for each message by itself."""
    edge = Edge()
    edge.busy(1.0)
    lane = edge.quick(BRIEF)
    for _ in range(2):
        lane.write(b"a")
        edge.tick()
        lane.write(b"b")
        edge.tick(LANE_HOLD / 2)
        assert [b"ab"] == edge.tick(LANE_HOLD / 2)
    lane.write(b"a")
    assert [] == edge.tick()

    assert 0.0 < edge.flushing.pause(edge.now) <= LANE_HOLD


def joined(edge: Edge) -> Outbox:
    """One whose holds are joined, and that is held."""
    edge.busy(1.0)
    box = edge.quick()
    for _ in range(2):
        for piece in (b"a", b"b", b"c", b"d"):
            box.write(piece)
            assert [] == edge.tick()
        assert [b"abcd"] == edge.tick(HOLD)
    box.write(b"a")
    assert [] == edge.tick()
    return box


def test_while_all_that_leaves_was_held_nobody_need_look_what_comes() -> None:
    """Each message would cost a look at the kernel of its own, although its reader gets it with the next ones."""
    edge = Edge()
    joined(edge)

    assert PAUSE == edge.flushing.pause(edge.now)
    assert PAUSE / 4 == pytest.approx(edge.flushing.pause(edge.now + HOLD - PAUSE / 4))  # it is due then
    edge.tick(HOLD)
    assert 0.0 == edge.flushing.pause(edge.now)  # nothing waits for more


def test_somebody_looks_while_answers_go_out() -> None:
    """A client that sends when it is answered would wait for a moment each time, and get a tenth done."""
    edge = Edge()
    box = joined(edge)
    other = edge.outbox(ADAPTIVE)
    other.answer(b"answer")
    assert [b"answer"] == edge.tick()
    assert 0.0 == edge.flushing.pause(edge.now)

    for piece in (b"b", b"c", b"d"):
        box.write(piece)
        edge.tick()
    assert [b"abcd"] == edge.tick(1.1 * HOLD)
    box.write(b"a")
    edge.tick()
    assert PAUSE == edge.flushing.pause(edge.now)
    box.answer(b"answer")
    assert [b"aanswer"] == edge.tick()
    box.write(b"b")
    edge.tick()
    assert 0.0 == edge.flushing.pause(edge.now)


def test_somebody_looks_while_holds_are_tried() -> None:
    """In a closed loop nobody sends before what is held has arrived, and each try would be longer than it has to be."""
    edge = Edge()
    edge.busy(1.0)
    box = edge.quick()
    edge.now += 2 * HOLD  # nothing was sent at once for long enough
    box.sent_at = edge.now
    box.write(b"a")
    assert [] == edge.tick()

    assert 0.0 == edge.flushing.pause(edge.now)


def a_second(rate: int, readers: int) -> tuple[int, int, Flushing]:
    """(messages, sends, what decided about them) of a worker that spreads *rate* messages a second over *readers*."""
    receiving, sending = 8e-6, 6e-6  # seconds of work, as measured
    edge = Edge()
    boxes = [edge.outbox(ADAPTIVE) for _ in range(readers)]
    written = sends = 0
    began = edge.now
    while edge.now < began + 1.0:
        tick = edge.now
        while began + written / rate <= edge.now:
            boxes[written * 7 % readers].write(b"m")
            written += 1
            edge.now += receiving
        left = len(edge.tick())
        sends += left
        edge.now += sending * left
        edge.flushing.worked(edge.now - tick, edge.now)
        edge.now = max(edge.now, min(began + written / rate, edge.flushing.due))
    return written, sends, edge.flushing


@pytest.mark.parametrize("rate, readers", [(20_000, 20), (10_000, 10)], ids=["one worker", "one of two"])
def test_a_third_of_the_processor_is_enough_to_hold(rate: int, readers: int) -> None:
    """20 000 messages a second to 20 readers would cost a send each: they take no more than that of a worker."""
    written, sends, _ = a_second(rate, readers)

    assert sends < written / 2


def test_readers_of_some_hundred_messages_a_second_wait_for_none() -> None:
    """Each message would be milliseconds late, and hardly a send be saved."""
    written, sends, flushing = a_second(20_000, 40)

    assert (0, 0) == (flushing.waited, flushing.filled)
    assert sends == written


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["write", "answer", "tick"]), st.floats(0, 0.01))))
def test_nothing_stays_longer_than_its_hold(steps: list[tuple[int, str, float]]) -> None:
    """A message that nobody writes behind would wait for ever, or longer than was promised."""
    edge = Edge(most=3)
    edge.busy(1.0)
    boxes = [edge.outbox(ADAPTIVE), edge.outbox(ADAPTIVE), edge.outbox(BUFFERED, 2), edge.outbox(BUFFERED, 9)]
    boxes.append(edge.outbox(BRIEF))
    first: dict[int, float] = {}  # when the oldest that is not sent was written
    for which, action, later in steps:
        if action == "tick":
            edge.tick(later)
        elif action == "write":
            boxes[which].write(b"m")
            edge.tick()
        else:
            boxes[which].answer(b"a")
            edge.tick()
            assert 0 == boxes[which].size
        for number, box in enumerate(boxes):
            if not box.size:
                first.pop(number, None)
            else:
                longest = {ADAPTIVE: HOLD, BUFFERED: BUFFER, BRIEF: LANE_HOLD}[box.strategy]
                assert edge.now - first.setdefault(number, edge.now) <= longest
                assert edge.flushing.due <= first[number] + longest + 1e-9
