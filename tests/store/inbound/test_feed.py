# The feed of a partition: what is read is dispatched in order, and what is done moves the position.
from collections.abc import Callable
from typing import Final

from broker.delivery.completion import Completion
from broker.reasons import LogFailure
from broker.session.message import Message
from broker.store.inbound.feed import PartitionFeed
from broker.store.inbound.pack import AcceptedPublish, PackBuilder
from broker.store.logs.records import Pack, Position, Record
from broker.store.logs.topics import LogError
from tests.session.receiver import message
from tests.store.inbound.test_pack import run

NOW: Final = 1000.0
WALL: Final = 1_800_000_000.0
SOURCE: Final = 7


class Reading:
    def __init__(self) -> None:
        self.taken_offsets: list[int] = []
        self.stopped = False

    def taken(self, record: Record) -> None:
        self.taken_offsets.append(record.offset)

    def stop(self) -> None:
        self.stopped = True


class Stage:
    """A feed, and receivers that are done when the test says so."""

    def __init__(self, begun: int = 1 << 40, position: Position | None = None) -> None:
        self.arrivals = 0
        self.feed = PartitionFeed(3, position or Position(), begun, self._arrived)
        if begun == 1 << 40:  # everything may be dispatched
            self.feed._unrepeatable = 0
        self.reading = Reading()
        self.feed.reading = self.reading
        self.sequence = 0
        self.pending: list[Completion] = []

    def _arrived(self) -> None:
        self.arrivals += 1

    def give(self, offset: int, *packs: bytes) -> None:
        found = []
        for body in packs:
            self.sequence += 1
            found.append(Pack(SOURCE, self.sequence, body))
        self.feed.received(Record(offset, found), NOW)

    def dispatch(self, most: int = 1000, holds: Callable[[bytes], bool] = lambda payload: False) -> list[bytes]:
        """Dispatch up to *most* publishes; those for which *holds* says so are not done at once."""
        payloads: list[bytes] = []
        while len(payloads) < most:
            publish = self.feed.next(NOW, WALL)
            if publish is None:
                break
            payloads.append(payload_of(publish))
            completion: Completion | None = None
            if publish.message is not None and holds(payloads[-1]):
                completion = publish.message.hold()
                self.pending.append(completion)
            self.feed.passed(completion)
        return payloads

    def offset(self) -> int:
        return self.feed.position.offset


def payload_of(publish: AcceptedPublish) -> bytes:
    if publish.run is not None:
        return b"+".join(publish.run.payloads())
    assert publish.message is not None
    return publish.message.payload


def pack(*messages: Message) -> bytes:
    builder = PackBuilder()
    for one in messages:
        builder.add(one, "", 0)
    return builder.take(NOW, WALL)


def numbered(*payloads: bytes, qos: int = 1) -> bytes:
    return pack(*[message(payload, qos) for payload in payloads])


def always(payload: bytes) -> bool:
    return True


def test_publishes_are_dispatched_in_the_order_of_the_log() -> None:
    """Receivers would get the messages of a publisher in another order."""
    stage = Stage()
    stage.give(0, numbered(b"1", b"2"), numbered(b"3"))
    stage.give(1, numbered(b"4"))

    assert [b"1", b"2", b"3", b"4"] == stage.dispatch()
    assert 2 == stage.offset() and stage.feed.changed
    assert [0, 1] == stage.reading.taken_offsets
    assert stage.feed.quiet()


def test_the_position_stays_before_what_is_not_done() -> None:
    """What a receiver has not stored would be lost with this worker."""
    stage = Stage()
    stage.give(0, numbered(b"1"))
    stage.give(1, numbered(b"2", b"3"))
    stage.give(2, numbered(b"4"))
    assert [b"1", b"2", b"3", b"4"] == stage.dispatch(holds=lambda payload: payload == b"3")

    assert (1, [0, 2]) == (stage.offset(), stage.reading.taken_offsets)
    stage.pending[0].settle(NOW)
    assert (3, [0, 2, 1]) == (stage.offset(), stage.reading.taken_offsets)


def test_a_record_counts_when_all_of_it_was_dispatched() -> None:
    """The rest of a record would be passed over by the next worker."""
    stage = Stage()
    stage.give(0, numbered(b"1", b"2"))
    assert [b"1"] == stage.dispatch(most=1)

    assert 0 == stage.offset()
    stage.dispatch()
    assert 1 == stage.offset()


def test_an_empty_record_is_passed() -> None:
    """A record whose packs were all read before would stop the partition."""
    stage = Stage()
    stage.give(0)
    stage.give(1, numbered(b"1"))

    assert [b"1"] == stage.dispatch()
    assert 2 == stage.offset()


# What is lost is dispatched again.


def test_what_may_be_lost_is_dispatched_again_in_order_ahead_of_the_rest() -> None:
    """It would be missing; or come behind later ones, and be taken for a repetition of them."""
    stage = Stage()
    stage.give(0, numbered(b"1", b"2", b"3", b"4"))
    stage.dispatch(holds=always)
    stage.give(1, numbered(b"5"))
    first, second, _, fourth = stage.pending
    fourth.settle(NOW)
    second.abandoned = True
    assert second.queue is not None
    second.queue.abandoned(NOW)
    stage.pending = []

    assert [b"2", b"3", b"5"] == stage.dispatch(holds=always)
    assert 0 == stage.offset()
    for one in (first, *stage.pending):
        one.settle(NOW)
    assert 2 == stage.offset()


def test_former_receivers_change_nothing_once_it_is_dispatched_again() -> None:
    """The position would pass a publish that its new receivers have not stored."""
    stage = Stage()
    stage.give(0, numbered(b"1", b"2"))
    stage.dispatch(holds=always)
    lost, other = stage.pending
    lost.abandoned = True
    assert lost.queue is not None
    lost.queue.abandoned(NOW)
    stage.pending = []
    stage.dispatch(holds=always)
    lost.settle(NOW)
    other.settle(NOW)

    assert 0 == stage.offset()
    for one in stage.pending:
        one.settle(NOW)
    assert 1 == stage.offset()


def test_what_is_lost_while_it_is_dispatched_again_comes_once_more() -> None:
    """The partition would stand still."""
    stage = Stage()
    stage.give(0, numbered(b"1", b"2"))
    stage.dispatch(holds=always)
    for _ in range(2):
        lost = stage.pending[0]
        lost.abandoned = True
        assert lost.queue is not None
        lost.queue.abandoned(NOW)
        stage.pending = []
        assert [b"1"] == stage.dispatch(most=1, holds=always)
    assert [b"2"] == stage.dispatch(holds=always)
    for one in stage.pending:
        one.settle(NOW)

    assert 1 == stage.offset()


def test_what_is_abandoned_while_it_is_offered_comes_again() -> None:
    """Nobody would tell, and the partition would stand still."""
    stage = Stage()
    stage.give(0, numbered(b"1"))
    publish = stage.feed.next(NOW, WALL)
    assert publish is not None and publish.message is not None
    completion = publish.message.hold()
    completion.abandoned = True
    stage.feed.passed(completion)

    assert [b"1"] == stage.dispatch()
    assert 1 == stage.offset()


# Tokens.


def tokens(stage: Stage) -> list[bytes]:
    found: list[bytes] = []
    while (publish := stage.feed.next(NOW, WALL)) is not None:
        assert publish.message is not None
        found.append(b"" if publish.message.completion is None else publish.message.completion.token)
        stage.feed.passed(None)
    return found


def test_qos_2_has_the_same_rising_token_whenever_it_is_read() -> None:
    """A durable receiver would store it twice after the death of a worker, or take it for an earlier one."""
    mixed = pack(message(b"0", 0), message(b"1", 2), message(b"2", 1), message(b"3", 2))
    once, again = Stage(), Stage(begun=1)
    for stage in (once, again):
        stage.give(0, mixed)
        stage.give(1, numbered(b"4", qos=2))
    first, second = tokens(once), tokens(again)

    assert [b"", b""] == [first[0], first[2]]
    found = [token for token in first if token]
    assert found == sorted(set(found)) and 3 == len(found)
    assert 1 == len({token[:8] for token in found})
    assert [token for token in second if token] == found


def test_partitions_and_workers_have_tokens_of_their_own() -> None:
    """Publishes of one would be taken for repetitions of those of another one."""
    body = numbered(b"1", qos=2)
    found = set()
    for number, source in ((3, 7), (3, 8), (4, 7)):
        feed = PartitionFeed(number, Position(), 1 << 40, lambda: None)
        feed.received(Record(0, [Pack(source, 1, body)]), NOW)
        publish = feed.next(NOW, WALL)
        assert publish is not None and publish.message is not None and publish.message.completion is not None
        found.add(publish.message.completion.token[:8])

    assert 3 == len(found)


def test_the_token_of_the_publisher_stays_with_what_is_dispatched_again() -> None:
    """A receiver that had stored it would store it once more."""
    published = message(b"1", 2)
    published.completion = Completion()
    published.completion.token = b"t" * 16
    stage = Stage()
    stage.give(0, pack(published))
    stage.dispatch(holds=always)
    stage.pending[0].abandoned = True
    assert stage.pending[0].queue is not None
    stage.pending[0].queue.abandoned(NOW)
    publish = stage.feed.next(NOW, WALL)

    assert publish is not None and publish.message is not None and publish.message.completion is not None
    assert b"t" * 16 == publish.message.completion.token


# QoS 0.


def test_qos_0_is_dispatched_once_it_is_saved_that_it_is() -> None:
    """After a crash it would come twice, which QoS 0 must not."""
    stage = Stage(begun=0)
    stage.give(0, numbered(b"1"))
    stage.give(1, numbered(b"2"), numbered(b"3", qos=0))
    stage.give(2, numbered(b"4", qos=0))
    assert [b"1"] == stage.dispatch()
    assert (3, 0, True) == (stage.feed.begun, stage.feed.confirmed, stage.feed.changed)
    stage.feed.confirmed = 3

    assert [b"2", b"3", b"4"] == stage.dispatch()


def test_qos_0_that_may_have_been_dispatched_is_left_out_and_counted() -> None:
    """It would come twice after the death of a worker; or be missing, and nobody know."""
    builder = PackBuilder()
    builder.add(message(b"1", 1), "", 0)
    builder.add_run(run(b"2", b"3"), NOW, WALL)
    builder.add(message(b"4", 0), "", 0)
    builder.add(message(b"5", 1), "", 0)
    stage = Stage(begun=1)
    stage.give(0, builder.take(NOW, WALL))
    stage.give(1, numbered(b"6", qos=0))

    assert [b"1", b"5"] == stage.dispatch()
    assert 3 == stage.feed.take_losses()[2]
    stage.feed.confirmed = stage.feed.begun
    assert [b"6"] == stage.dispatch()


def test_qos_0_is_not_dispatched_again() -> None:
    """A receiver that has it would get it twice."""
    stage = Stage()
    stage.give(0, pack(message(b"1", 1), message(b"2", 0), message(b"3", 1)))
    stage.dispatch(holds=always)  # the one of QoS 0 goes out in pages
    stage.pending[0].abandoned = True
    assert stage.pending[0].queue is not None
    stage.pending[0].queue.abandoned(NOW)

    assert [b"1", b"3"] == stage.dispatch()
    assert 1 == stage.offset()


# What is missing, and the end.


def test_what_was_deleted_or_is_damaged_is_passed_and_told() -> None:
    """The partition would stand still; or nobody learn that something is lost."""
    stage = Stage()
    stage.feed.jumped(0, 5, NOW)
    stage.give(5, b"no pack", numbered(b"1"))
    stage.feed.damaged(6, b"?", "it is damaged", NOW)
    stage.give(7, numbered(b"2"))

    assert [b"1", b"2"] == stage.dispatch()
    assert (5, [(6, "it is damaged"), (5, "it ends in its head")], 0) == stage.feed.take_losses()
    assert (0, [], 0) == stage.feed.take_losses()
    assert 8 == stage.offset()


def test_a_topic_that_was_made_anew_is_read_from_its_beginning() -> None:
    """Its records would be taken for some that were dispatched before."""
    stage = Stage(begun=9, position=Position(9))
    stage.feed.jumped(9, 0, NOW)
    stage.give(0, numbered(b"1", qos=0))
    assert [] == stage.dispatch()
    stage.feed.confirmed = stage.feed.begun

    assert (1, [b"1"]) == (stage.feed.begun, stage.dispatch())
    assert 1 == stage.offset()


def test_what_was_read_of_a_topic_that_is_gone_is_dispatched_before_the_new_one() -> None:
    """Its offsets are none of the new topic: QoS 0 would wait until that had as many records, and all behind it."""
    stage = Stage(begun=0, position=Position(500))
    stage.give(500, numbered(b"1", qos=0))
    stage.feed.jumped(501, 0, NOW)
    stage.give(0, numbered(b"2", qos=0))

    assert [b"1"] == stage.dispatch()
    stage.feed.confirmed = stage.feed.begun
    assert (1, [b"2"]) == (stage.feed.begun, stage.dispatch())
    assert 1 == stage.offset()


def test_it_says_what_waits_and_why_nothing_is_read() -> None:
    """Nobody could say how far behind the node is."""
    stage = Stage()
    assert 0.0 == stage.feed.oldest()
    stage.give(0, numbered(b"1", b"2"))
    assert WALL == stage.feed.oldest()
    stage.dispatch(most=1)
    assert WALL == stage.feed.oldest()
    stage.dispatch()
    assert 0.0 == stage.feed.oldest()
    stage.feed.failed(LogError(LogFailure.NO_LEADER, ""), NOW)
    assert LogFailure.NO_LEADER.words == stage.feed.trouble
    stage.feed.failed(None, NOW)
    assert "" == stage.feed.trouble


def test_a_partition_that_is_given_up_begins_no_further_record() -> None:
    """What it dispatches behind what it has saved would come twice."""
    stage = Stage()
    stage.give(0, numbered(b"1", b"2"))
    stage.give(1, numbered(b"3"))
    stage.dispatch(most=1, holds=always)
    stage.feed.ending = True
    assert [b"2"] == stage.dispatch()
    assert not stage.feed.quiet()
    stage.pending[0].settle(NOW)

    assert stage.feed.quiet() and 1 == stage.offset()


def test_a_feed_that_is_stopped_hears_of_nothing() -> None:
    """It would move the position of whoever goes on."""
    stage = Stage()
    stage.give(0, numbered(b"1"))
    stage.dispatch(holds=always)
    stage.feed.stop()
    stage.pending[0].settle(NOW)

    assert (0, True, 0) == (stage.offset(), stage.reading.stopped, stage.feed.unfinished)
    assert not stage.feed.has_more()
