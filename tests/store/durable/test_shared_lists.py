# The stored list of a shared subscription: what is taken from it, comes back, and is marked. Redis is a model.
import pytest

from broker.delivery.completion import Completion
from broker.reasons import DropReason
from broker.routing.shared_backlog import ListHolder
from broker.session.message import Message
from broker.store.durable.group_commit import MOST_BYTES
from broker.store.durable.group_queue import GroupQueue
from broker.store.durable.shared_lists import SharedList
from tests.session.receiver import message
from tests.store.durable.durable_worker import CLIENT, DurableWorker, answered
from tests.store.durable.model import ModelRedis

pytestmark = pytest.mark.interpreted  # a holder of lists is a compiled class

NAME = b"\0g%016x%08x" % (1, 1)
KEY = b"$share/group/a"
MOST = 1000


class Group(ListHolder):
    """Counts what the list says."""

    def __init__(self) -> None:
        self.pumped = 0
        self.ended = 0
        self.dropped = 0

    def pump(self, now: float) -> None:
        self.pumped += 1

    def queue_dropped(self, reason: DropReason, count: int) -> None:
        self.dropped += count

    def finished(self) -> None:
        self.ended += 1


class Waiting:
    """A list with the messages *said*, all of which are stored, beside a worker with one durable session."""

    def __init__(self, *said: bytes, qos: int = 1) -> None:
        self.redis = ModelRedis()
        self.worker = DurableWorker(self.redis)
        record = self.worker.store.begin(NAME)
        queue = record.queue()
        assert isinstance(queue, GroupQueue)
        record.store_head(0, None, False)
        record.store_group(KEY)
        queue.rest()
        self.group = Group()
        self.list = SharedList(KEY, record, queue, self.worker.budget, lambda name: None)
        self.list.bind(self.group)
        self.published = [message(payload, qos) for payload in said]
        for each in self.published:
            self.list.append(each, MOST, self.worker.now)
        self.worker.settle()

    def take(self, count: int) -> list[Message]:
        """The next *count* messages, which may have to be read."""
        found: list[Message] = []
        while len(found) < count:
            taken = self.list.take()
            if taken is None:
                self.group.pumped = 0
                self.worker.until(lambda: self.group.pumped > 0)
            else:
                found.append(taken)
        return found

    def give(self, taken: Message) -> Completion:
        """Another worker gets *taken*, and confirms it when the Completion is settled."""
        completion = taken.hold()
        self.list.given(taken, False, self.worker.now)
        return completion

    def stored(self, kind: bytes, name: bytes = NAME) -> list[bytes]:
        """The keys of that kind."""
        return [key for key in self.redis.values if b":%b:" % kind in key and key.endswith(name)]


def payloads(messages: list[Message]) -> list[bytes]:
    return [each.payload for each in messages]


def test_a_publisher_is_answered_when_its_message_is_stored() -> None:
    """It would be told that a message is safe that is in the memory of one worker; or never be told."""
    waiting = Waiting()
    published = message(b"1")
    waiting.list.append(published, MOST, waiting.worker.now)
    assert not answered(published)
    waiting.worker.settle()

    assert answered(published)


def test_what_is_put_back_comes_in_its_order() -> None:
    """Messages of one publisher would be mixed up whenever a member may not read one of them."""
    waiting = Waiting(b"1", b"2", b"3", b"4")
    taken = waiting.take(3)
    waiting.list.put_back(taken[:2])
    assert 3 == waiting.list.count()

    assert [b"1", b"2", b"4"] == payloads(waiting.take(3))


def test_what_a_receiver_may_have_lost_waits_again_before_all_others() -> None:
    """It would be lost with the worker that it was passed to, or come when it is of no use."""
    waiting = Waiting(b"1", b"2", b"3")
    first, second = [waiting.give(each) for each in waiting.take(2)]
    for lost in (second, first):
        assert lost.queue is not None
        lost.queue.abandoned(waiting.worker.now)
    assert not waiting.list.finished()

    assert [b"1", b"2", b"3"] == payloads(waiting.take(3))


def test_a_message_is_removed_when_its_receiver_is_done_with_it() -> None:
    """A crash in between would lose it; or it would stay in Redis for ever."""
    waiting = Waiting(b"1", b"2")
    given = [waiting.give(each) for each in waiting.take(2)]
    given[1].settle(waiting.worker.now)
    waiting.worker.pass_time(1.0)
    assert 1 == len(waiting.stored(b"queue"))
    assert 0 == waiting.group.ended and not waiting.list.finished()
    given[0].settle(waiting.worker.now)
    assert 1 == waiting.group.ended and waiting.list.finished()
    assert 0 == waiting.list.clear()
    waiting.worker.settle()

    assert [] == waiting.stored(b"queue") + waiting.stored(b"session")
    assert 0 == waiting.worker.budget.used


def test_a_list_at_rest_has_nothing_in_memory_but_what_is_given_away() -> None:
    """Each group would keep messages in memory for members that are away; or give a message twice."""
    waiting = Waiting(b"1", b"2", b"3")
    (taken,) = waiting.take(1)
    given = waiting.give(taken)
    waiting.list.rest()
    assert waiting.worker.budget.messages
    given.settle(waiting.worker.now)
    waiting.worker.settle()

    assert 0 == waiting.worker.budget.messages
    assert [b"2", b"3"] == payloads(waiting.take(2))


def test_a_message_of_qos_2_is_marked_in_the_transaction_in_which_its_member_stores_it() -> None:
    """A crash in between would give it to a second member, or to none: also if the list had something to write before,
    and a transaction is full in between.
    """
    waiting = Waiting(b"1", b"2", qos=2)
    waiting.worker.connect()
    (taken,) = waiting.take(1)
    waiting.list._queue._commit.soon(waiting.list._queue)
    long = waiting.worker.store.begin(b"long").queue()
    long.append(message(bytes(MOST_BYTES)), MOST, waiting.worker.now)
    waiting.worker.session.offer(taken, waiting.worker.now)
    waiting.list.given(taken, True, waiting.worker.now)
    for _ in range(100):
        if waiting.stored(b"queue", CLIENT):
            break
        assert [] == waiting.stored(b"released")
        waiting.worker.tick()
        waiting.redis.execute(1)
        waiting.redis.answer(waiting.worker.now)

    assert [b"1"] == list(waiting.redis.values[waiting.stored(b"released")[0]])


def test_a_message_of_qos_2_whose_member_was_taken_waits_again() -> None:
    """Its mark would keep it from all members for ever."""
    waiting = Waiting(b"1", qos=2)
    waiting.worker.connect()
    (taken,) = waiting.take(1)
    completion = taken.hold()
    waiting.list.given(taken, True, waiting.worker.now)
    waiting.worker.settle()  # it is marked
    assert completion.queue is not None
    completion.queue.abandoned(waiting.worker.now)
    waiting.worker.settle()

    assert [b"1"] == payloads(waiting.take(1))


def test_a_list_that_is_full_drops_its_oldest_messages() -> None:
    """It would grow in Redis without end."""
    waiting = Waiting(*[b"%d" % number for number in range(10)])
    lost = 0
    for number in range(10, 13):
        lost += waiting.list.append(message(b"%d" % number), 10, waiting.worker.now)
        waiting.worker.settle()

    assert 3 == lost + waiting.group.dropped
    assert [b"%d" % number for number in range(3, 13)] == payloads(waiting.take(10))
