# The queue of a session: in memory, and as a port for a queue that stores its messages elsewhere.
from collections import deque
from collections.abc import Callable

import pytest

from broker.delivery.completion import Completion
from broker.mqtt.packets import PUBREL, V311, Ack
from broker.reasons import DropReason
from broker.routing.route import Group
from broker.session.limits import SessionLimits
from broker.session.message import Message
from broker.session.queue import MESSAGE, QUEUED, UNLIMITED, Holder, MemoryQueue, MessageBudget, MessageQueue
from broker.session.session import Session
from broker.version import form
from tests.session.receiver import NOW, PLENTY, Receiver, message, sent

ALONE = MESSAGE + QUEUED  # bytes of a message that waits in one queue, beside its topic and payload


def memory(payloads: list[bytes], budget: MessageBudget, most_bytes: int = PLENTY) -> MemoryQueue:
    queue = MemoryQueue(most_bytes, budget)
    for payload in payloads:
        queue.append(message(payload, 1), UNLIMITED, NOW)
    return queue


def popped(queue: MessageQueue, budget: MessageBudget | None = None) -> list[bytes]:
    payloads = []
    while (oldest := queue.pop()) is not None:
        payloads.append(oldest.payload)
        if budget is not None:
            budget.release(oldest)  # as if it had been acknowledged
    return payloads


def test_messages_leave_in_the_order_in_which_they_came() -> None:
    """Messages are reordered [MQTT-4.6.0-6], or the budget keeps their places for ever."""
    budget = MessageBudget(PLENTY)
    queue = memory([b"a", b"bb"], budget)
    assert (2, 2, 5 + 2 * ALONE) == (queue.count, budget.messages, budget.used)  # with a byte of topic each

    assert [b"a", b"bb"] == popped(queue, budget)
    assert (0, 0, 0) == (queue.count, budget.messages, budget.used)


@pytest.mark.parametrize(
    ("most_bytes", "limit", "most"),
    [(6, PLENTY, UNLIMITED), (PLENTY, 2 * ALONE + 40, UNLIMITED), (PLENTY, PLENTY, 2)],
)
def test_each_limit_alone_drops_the_oldest(most_bytes: int, limit: int, most: int) -> None:
    """A session holds more than its limits or the budget of the worker allow, or loses its newest message."""
    budget = MessageBudget(limit)
    queue = MemoryQueue(most_bytes, budget)

    assert [0, 0, 1] == [queue.append(message(payload, 1), most, NOW) for payload in (b"aa", b"bb", b"cc")]
    assert 2 * (ALONE + 3) == budget.used
    assert [b"bb", b"cc"] == popped(queue, budget)
    assert 0 == budget.used


def test_what_is_put_before_keeps_its_places_in_the_budget() -> None:
    """A session that comes from another worker is counted twice, or overtaken by what came since."""
    budget = MessageBudget(PLENTY)
    earlier = memory([b"a", b"b"], budget).take_all()
    queue = memory([b"c"], budget)

    assert 1 == queue.prepend(earlier, 2)
    assert (2, 2 * (ALONE + 2)) == (queue.count, budget.used)
    assert [b"b", b"c"] == popped(queue, budget)
    assert 0 == budget.used


def test_what_is_put_back_is_first_again() -> None:
    """A message that no member of a shared subscription can have yet is overtaken, or its place is lost."""
    budget = MessageBudget(PLENTY)
    queue = memory([b"a", b"b", b"c"], budget)
    taken = [queue.pop(), queue.pop()]

    queue.put_back([each for each in taken if each is not None])

    assert (3, 3, 3 * (ALONE + 2)) == (queue.count, budget.messages, budget.used)
    assert [b"a", b"b", b"c"] == popped(queue)


def test_what_is_removed_gives_its_place_back() -> None:
    """The budget of the worker fills up with messages that are gone."""
    budget = MessageBudget(PLENTY)
    queue = memory([b"a", b"b", b"c"], budget)

    assert 1 == queue.remove_unless(lambda each: each.payload != b"b")
    assert (2, 2) == (queue.count, budget.messages)
    assert 2 == queue.clear()
    assert (0, 0, 0) == (queue.count, budget.messages, budget.used)


# A queue that stores its messages elsewhere. An interpreted class cannot extend the compiled port, hence the marks.


class StoredQueue(MessageQueue if form() == "interpreted" else object):  # type: ignore[misc]
    """Stores messages on request, gives them in pages of two, and keeps what was not acknowledged."""

    def __init__(self) -> None:
        super().__init__(True)
        self.unstored: list[Completion] = []
        self.stored: list[Message] = []  # until done
        self.page: deque[Message] = deque()
        self.given = 0
        self.by_id: dict[int, Message] = {}
        self.asked: list[int] = []  # to be told of

    def rest(self) -> None:
        pass

    def wake(self) -> None:
        pass

    def bind(self, holder: Holder) -> None:
        pass

    def append(self, message: Message, most: int, now: float) -> int:
        self.unstored.append(message.hold())
        self.stored.append(message)
        self.count += 1
        return 0

    def pop(self) -> Message | None:
        if not self.page:
            return None
        self.count -= 1
        self.given += 1
        self.packet_id += 1
        self.by_id[self.packet_id] = self.page[0]
        return self.page.popleft()

    def keep(self, message: Message, now: float) -> bool:
        return False

    def done(self, packet_id: int, message: Message, now: float) -> None:
        self.stored.remove(self.by_id.pop(packet_id))
        self.given -= 1

    def release(self, packet_id: int) -> bool:
        self.asked.append(packet_id)
        return self.asked.count(packet_id) > 1

    def read_page(self) -> None:
        self.page.extend(self.stored[self.given + len(self.page) :][:2])

    def remove_unless(self, keep: Callable[[Message], bool]) -> int:
        raise AssertionError("not asked for")


def stored(window: int = 1) -> tuple[StoredQueue, Receiver]:
    queue = StoredQueue()
    receiver = Receiver(expiry=100)
    budget = MessageBudget(PLENTY)
    limits = SessionLimits(inflight=window, pending=9, queue=9, queue_bytes=PLENTY, budget=budget)
    receiver.session = Session("client", limits, receiver.counters, queue)
    receiver.session.expiry = 100
    return queue, receiver


@pytest.mark.interpreted
def test_a_publish_to_a_stored_queue_is_done_when_the_queue_says_so() -> None:
    """A publisher is told that its message is safe before it is stored."""
    queue, receiver = stored()
    group = Group(1, False, b"", 0)
    group.add(receiver.session)
    published = message(b"x", 2)
    group.deliver(published, 0, 1, None, NOW)  # as a variant of QoS 1

    assert published.completion is not None and 1 == published.completion.pending
    queue.unstored[0].settle(NOW)
    assert 0 == published.completion.pending


@pytest.mark.interpreted
def test_a_stored_queue_is_delivered_in_pages_and_keeps_what_is_not_acknowledged() -> None:
    """A client that is back gets all of a long queue at once, or loses what it has not acknowledged."""
    queue, receiver = stored(window=3)
    receiver.offer(*[message(payload, 1) for payload in (b"a", b"b", b"c")])
    receiver.connect(V311)
    assert [] == receiver.payloads()
    queue.read_page()
    receiver.session.pump(NOW)

    assert [b"a", b"b"] == receiver.payloads()
    assert 1 == receiver.session.waiting()
    assert receiver.session.puback(1, NOW)
    assert [b"b", b"c"] == [each.payload for each in queue.stored]
    queue.read_page()
    receiver.session.pump(NOW)
    assert [b"c"] == receiver.payloads()
    assert 0 == receiver.session.waiting()
    receiver.offer(message(b"d", 1))
    assert 1 == receiver.session.waiting()  # the queue is there though it was empty


@pytest.mark.interpreted
def test_a_stored_queue_hears_of_what_will_never_be_sent() -> None:
    """A message that has expired is stored for ever."""
    queue, receiver = stored()
    receiver.offer(message(b"old", 1, expires=NOW - 1.0))
    receiver.connect(V311)
    queue.read_page()
    receiver.session.pump(NOW)

    assert [] == receiver.payloads()
    assert [] == queue.stored
    assert 1 == receiver.dropped(DropReason.EXPIRED)


@pytest.mark.interpreted
def test_pubrel_waits_until_pubrec_is_stored() -> None:
    """A worker that dies has the message sent again, and its client takes it twice [MQTT-4.3.3-6]."""
    queue, receiver = stored()
    receiver.offer(message(b"a", 2), message(b"b", 2))
    receiver.connect(V311)
    queue.read_page()
    receiver.session.pump(NOW)
    assert [b"a"] == receiver.payloads()
    assert receiver.session.pubrec(1, 0, NOW)
    assert [] == receiver.take()

    receiver.session.released(1)
    assert [Ack(PUBREL, 1)] == receiver.take()
    assert receiver.session.pubrec(1, 0, NOW)  # it may come twice
    assert [Ack(PUBREL, 1)] == receiver.take()
    assert [b"a", b"b"] == [each.payload for each in queue.stored]
    assert receiver.session.pubcomp(1, NOW)
    assert [b"b"] == [each.payload for each in queue.stored]


@pytest.mark.interpreted
def test_pubrel_that_was_stored_while_the_client_was_away_is_sent_when_it_is_back() -> None:
    """The exchange never ends, or PUBREL is sent before it is safe."""
    queue, receiver = stored()
    receiver.offer(message(b"a", 2))
    receiver.connect(V311)
    queue.read_page()
    receiver.session.pump(NOW)
    assert receiver.session.pubrec(1, 0, NOW)
    receiver.session.detach()
    receiver.session.released(1)
    receiver.connect(V311)

    assert [Ack(PUBREL, 1)] == receiver.take()


@pytest.mark.interpreted
def test_what_another_worker_may_have_sent_is_marked() -> None:
    """A client takes a message of a worker that has died for another one [MQTT-3.3.1-1]."""
    queue, receiver = stored(window=2)
    receiver.offer(message(b"a", 1))
    queue.duplicate = True
    receiver.connect(V311)
    queue.read_page()
    receiver.session.pump(NOW)

    assert [sent(b"a", 1, 1, dup=True)] == receiver.take()


def test_what_has_left_makes_room() -> None:
    """A queue drops messages although it is nearly empty, once enough have passed through it."""
    queue = MemoryQueue(6, MessageBudget(PLENTY))

    for _ in range(5):
        assert 0 == queue.append(message(b"aa", 1), UNLIMITED, NOW)
        assert queue.pop() is not None


class Waiter(Holder if form() == "interpreted" else object):  # type: ignore[misc]
    """Counts how often it may go on."""

    def __init__(self) -> None:
        self.pumped = 0

    def pump(self, now: float) -> None:
        self.pumped += 1


@pytest.mark.interpreted
def test_a_session_that_has_ended_is_not_asked_to_go_on() -> None:
    """A session that is gone is kept until there is memory, and sends to a client that it no longer has."""
    budget = MessageBudget(100)
    ended, waits = Waiter(), Waiter()
    budget.used = 200
    assert not budget.allows(ended, 0)
    assert not budget.allows(waits, 0)
    budget.forget(ended)
    budget.used = 0
    budget.retry(NOW)

    assert (0, 1) == (ended.pumped, waits.pumped)
