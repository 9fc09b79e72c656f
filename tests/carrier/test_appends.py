# What waits to be appended: order, records, failures and limits, with a log that only notes what it is sent.
import tracemalloc
from collections.abc import Callable
from math import inf

import pytest

from broker.carrier.appends import COPIES, FIRST_PAUSE, LONGEST_PAUSE, PACK_BYTES, QUEUE_BYTES, WELL, Appends
from broker.carrier.log import LogStatistics
from broker.reasons import LogFailure
from broker.store.logs.records import OVERHEAD, START, Pack, decode
from broker.store.logs.topics import LogError, Partition

ONE, TWO = Partition("one"), Partition("two")
AWAY = LogError(LogFailure.UNREACHABLE, "")
LARGE = LogError(LogFailure.TOO_LARGE, "")


class Sent:
    """Appends with a log, and what it has sent and told."""

    def __init__(self, most_bytes: int = 10_000, record_bytes: int = 1_000, pace: float = 0.0) -> None:
        self.now = 100.0
        self.records: list[tuple[Partition, list[int]]] = []  # the sequences in each
        self.numbers: dict[Partition, int] = {}  # of the last attempt
        self.told: list[tuple[int, int, LogError | None]] = []  # sequence, offset, error
        self.statistics = LogStatistics()
        self.appends = Appends(self._send, lambda: self.now, self.statistics, most_bytes, record_bytes, pace)

    def _send(self, partition: Partition, record: bytes, number: int) -> None:
        self.numbers[partition] = number
        self.records.append((partition, [pack.sequence for pack in decode(record)]))

    def stored(self, partition: Partition, offset: int) -> None:
        self.appends.stored(partition, self.numbers[partition], offset)
        self.appends.flush()

    def failed(self, partition: Partition, error: LogError) -> None:
        self.appends.failed(partition, self.numbers[partition], error)
        self.appends.flush()

    def append(self, partition: Partition, *sequences: int, size: int = 10) -> list[bool]:
        return [self.appends.append(partition, Pack(7, one, bytes(size)), self.tells(one)) for one in sequences]

    def tells(self, sequence: int) -> Callable[[int, LogError | None], None]:
        return lambda offset, error: self.told.append((sequence, offset, error))


def test_one_record_of_a_partition_is_under_way() -> None:
    """A record behind one that fails would be stored before it."""
    sent = Sent()
    sent.append(ONE, 1, 2)
    sent.append(TWO, 1)
    before = [*sent.records]
    sent.appends.flush()
    sent.append(ONE, 3, 4)
    sent.appends.flush()
    meanwhile = [*sent.records]
    sent.stored(ONE, 50)

    assert [] == before
    assert [(ONE, [1, 2]), (TWO, [1])] == meanwhile
    assert (ONE, [3, 4]) == sent.records[-1]
    assert [(1, 50, None), (2, 50, None)] == sent.told


def test_records_of_many_partitions_leave_together() -> None:
    """Each would be a request of its own, a millisecond of CPU; or a pack that comes alone wait for nothing."""
    sent = Sent(pace=0.002)
    sent.append(ONE, 1)
    due = [sent.appends.flush()]
    sent.now += 0.001
    sent.append(TWO, 1)
    due.append(sent.appends.flush())
    sent.append(ONE, 2)
    sent.stored(ONE, 50)
    meanwhile = [*sent.records]
    sent.now += 0.001
    due.append(sent.appends.flush())

    assert [inf, 100.002, inf] == pytest.approx(due)
    assert [(ONE, [1])] == meanwhile
    assert [(ONE, [1]), (TWO, [1]), (ONE, [2])] == sent.records


def test_a_record_that_failed_is_sent_again_as_it_was() -> None:
    """Its tokens would not tell that it is the same one, or what follows would come first."""
    sent = Sent()
    sent.append(ONE, 1)
    sent.appends.flush()
    sent.append(ONE, 2)
    pauses = []
    for _ in range(8):
        sent.failed(ONE, AWAY)
        due = sent.appends.tick(sent.now)
        pauses.append(round(due - sent.now, 3))
        sent.now = due
        sent.appends.tick(sent.now)
    failing = dict(sent.statistics.failing)
    sent.stored(ONE, 9)

    assert [(ONE, [1])] * 9 + [(ONE, [2])] == sent.records
    assert [FIRST_PAUSE, 0.1, 0.2, 0.4, 0.8, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE] == pauses
    assert {ONE: str(AWAY)} == failing
    assert ({}, 8) == (sent.statistics.failing, sent.statistics.resent)
    assert float("inf") == sent.appends.tick(sent.now)


def test_packs_of_a_turn_share_records_up_to_their_size() -> None:
    """A record of a thousand messages would be larger than Kafka takes."""
    size = OVERHEAD + 10
    sent = Sent(most_bytes=100_000, record_bytes=START.size + 3 * size)
    sent.append(ONE, *range(1, 8))
    sent.append(TWO, 1, size=5_000)
    sent.appends.flush()
    for offset in range(2):
        sent.stored(ONE, offset)

    assert [(ONE, [1, 2, 3]), (TWO, [1]), (ONE, [4, 5, 6]), (ONE, [7])] == sent.records


def test_a_record_that_is_too_large_is_cut_and_only_a_pack_that_is_too_large_is_refused() -> None:
    """One large message would stop a partition for ever, or take its neighbours with it."""
    sent = Sent()
    sent.append(ONE, 1, 2, 3, 4)
    sent.appends.flush()
    sent.failed(ONE, LARGE)
    sent.failed(ONE, LARGE)
    sent.stored(ONE, 0)

    assert [(ONE, [1, 2, 3, 4]), (ONE, [1]), (ONE, [2]), (ONE, [3])] == sent.records
    assert [(1, -1, LARGE), (2, 0, None)] == sent.told


def test_the_limit_counts_what_is_under_way_and_is_given_back() -> None:
    """A log that is away would fill the memory, or a log that is back would be given nothing."""
    sent = Sent(most_bytes=2 * QUEUE_BYTES)
    first = sent.append(ONE, 1, size=2 * QUEUE_BYTES)  # one is always taken
    second = sent.append(TWO, 1, size=1)
    sent.appends.flush()
    refused = sent.append(TWO, 2, size=1)
    record = START.size + OVERHEAD + 2 * QUEUE_BYTES
    under_way = sent.statistics.waiting_bytes
    sent.stored(ONE, 0)
    third = sent.append(TWO, 3, size=1)

    assert [[True], [False], [False], [True]] == [first, second, refused, third]
    assert 2 == sent.statistics.refused
    assert PACK_BYTES + 3 * QUEUE_BYTES + COPIES * record == under_way
    assert (1, QUEUE_BYTES + PACK_BYTES + 1) == (sent.statistics.waiting, sent.statistics.waiting_bytes)


@pytest.mark.parametrize(("partitions", "each", "size"), [(1, 2000, 10), (2000, 1, 10), (20, 20, 5000)])
def test_what_is_counted_is_what_it_takes(traced: None, partitions: int, each: int, size: int) -> None:
    """Small packs would take ten times the memory that they are limited to."""
    sent = Sent(most_bytes=100_000_000, record_bytes=100)
    names = [Partition(f"topic{number}") for number in range(partitions)]
    before, _ = tracemalloc.get_traced_memory()
    for name in names:
        sent.append(name, *range(each), size=size)
    took = tracemalloc.get_traced_memory()[0] - before

    assert took <= sent.statistics.waiting_bytes


def test_a_partition_that_is_stuck_leaves_room_for_the_others() -> None:
    """A partition without leader would stop all APPLICATION clients, within seconds."""
    sent = Sent(most_bytes=40 * QUEUE_BYTES)
    for partition in (ONE, TWO):
        while all(sent.append(partition, 1, size=0)):
            sent.appends.flush()
            sent.failed(partition, AWAY)
    third = Partition("three")
    taken = 0
    for number in range(100):
        taken += sent.append(third, number, size=0) == [True]
        sent.appends.flush()
        sent.stored(third, number)

    assert 100 == taken


def test_what_waits_for_a_topic_that_is_deleted_is_given_up() -> None:
    """The packs of clients that were deleted would fill the memory for ever; or be acknowledged by a former attempt."""
    sent = Sent()
    sent.append(ONE, 1, 2)
    sent.append(TWO, 1)
    sent.appends.flush()
    sent.append(ONE, 3)
    before = sent.numbers[ONE]
    gone = LogError(LogFailure.UNKNOWN_TOPIC, "one")
    sent.appends.drop("one", gone)
    told = sent.told[:]
    left = sent.statistics.waiting
    sent.append(ONE, 4)  # it was made again
    sent.appends.flush()
    sent.appends.stored(ONE, before, 9)
    sent.appends.failed(ONE, before, AWAY)
    sent.stored(ONE, 0)
    sent.stored(TWO, 5)

    assert [(1, -1, gone), (2, -1, gone), (3, -1, gone)] == told
    assert 1 == left
    assert [(4, 0, None), (1, 5, None)] == sent.told[3:]
    assert (0, 0, {}) == (sent.statistics.waiting, sent.statistics.waiting_bytes, sent.statistics.failing)


def test_a_topic_may_be_deleted_by_who_is_told_of_it() -> None:
    """The acknowledgement of the last message of a client that is deleted would end the carrier."""
    sent = Sent()
    sent.appends.append(ONE, Pack(7, 1, b""), lambda offset, error: sent.appends.drop("one", AWAY))
    sent.append(ONE, 2)
    sent.appends.flush()
    sent.stored(ONE, 0)

    assert [(2, 0, None)] == sent.told
    assert (0, 0) == (sent.statistics.waiting, sent.statistics.waiting_bytes)


def test_a_long_outage_costs_nothing_between_two_attempts() -> None:
    """Thousands of partitions that wait would be looked at at each turn of the loop."""
    sent = Sent()
    for number in range(5):
        sent.append(Partition("many", number), 1)
    sent.appends.flush()
    for number in range(5):
        sent.failed(Partition("many", number), AWAY)
    due = sent.appends.tick(sent.now)
    sent.appends._failing.clear()  # looked at, it would give another time

    assert sent.now + FIRST_PAUSE == due == sent.appends.tick(sent.now)


def test_what_is_appended_when_a_record_is_stored_is_in_the_next_one() -> None:
    """A client that answers each acknowledgement with a message would stop, or overtake itself."""
    sent = Sent()

    def again(offset: int, error: LogError | None) -> None:
        sent.append(ONE, 3)
        sent.appends.flush()

    sent.appends.append(ONE, Pack(7, 1, b""), again)
    sent.appends.flush()
    sent.append(ONE, 2)
    sent.stored(ONE, 0)
    sent.stored(ONE, 1)
    sent.append(ONE, 4)
    sent.appends.flush()

    assert [(ONE, [1]), (ONE, [2, 3]), (ONE, [4])] == sent.records


def test_what_is_appended_to_an_empty_partition_meanwhile_is_sent_once() -> None:
    """A record would be sent twice, and the acknowledgement of the first one taken for that of another."""
    sent = Sent()

    def more(offset: int, error: LogError | None) -> None:
        sent.append(ONE, 2)

    sent.appends.append(ONE, Pack(7, 1, b""), more)
    sent.appends.flush()
    sent.stored(ONE, 0)
    sent.appends.flush()

    assert [(ONE, [1]), (ONE, [2])] == sent.records


def test_a_partition_that_has_nothing_costs_nothing() -> None:
    """The topics of all clients that there ever were would stay in memory."""
    sent = Sent()
    for number in range(100):
        partition = Partition("many", number)
        sent.append(partition, 1)
        sent.appends.flush()
        sent.failed(partition, AWAY)
        sent.stored(partition, 0)

    assert ({}, {}) == (sent.appends._queues, sent.appends._failing)


def test_a_partition_that_fails_while_the_log_answers_is_told_from_a_log_that_is_away() -> None:
    """One partition without a leader would close the gate of the log to everybody, or none that is away would."""
    sent = Sent()
    leaderless = LogError(LogFailure.NO_LEADER, "")
    alone = sent.statistics.alone
    for partition in (ONE, TWO):
        sent.append(partition, 1)
    sent.appends.flush()
    sent.failed(ONE, leaderless)
    sent.failed(TWO, AWAY)
    assert {ONE} == alone
    sent.now += LONGEST_PAUSE
    sent.appends.tick(sent.now)
    sent.failed(ONE, AWAY)
    assert set() == alone
    sent.now += LONGEST_PAUSE
    sent.appends.tick(sent.now)
    sent.appends.stuck(ONE, leaderless)
    sent.appends.stuck(ONE._replace(number=7), leaderless)  # nothing waits for that one
    assert {ONE} == alone
    assert {ONE: str(leaderless), TWO: str(AWAY)} == sent.statistics.failing
    sent.stored(ONE, 5)
    sent.stored(TWO, 5)

    assert (set(), {}) == (alone, sent.statistics.failing)


def test_partitions_that_all_fail_do_not_fail_alone() -> None:
    """If a whole log has too few replicas, only its bytes would close its gate, and no level rise."""
    sent = Sent()
    few = LogError(LogFailure.TOO_FEW_REPLICAS, "")
    three = Partition("three")
    alone = sent.statistics.alone
    for partition in (ONE, TWO, three):
        sent.append(partition, 1)
    sent.appends.flush()
    sent.failed(ONE, few)
    sent.failed(TWO, few)
    assert {ONE, TWO} == alone  # the log may just have stored something
    sent.now += WELL
    sent.appends.tick(sent.now)
    sent.failed(ONE, few)
    assert set() == alone
    sent.failed(TWO, few)
    assert set() == alone
    sent.stored(three, 5)
    assert {ONE, TWO} == alone
    sent.now += WELL
    sent.appends.tick(sent.now)
    sent.failed(ONE, few)
    sent.stored(TWO, 5)
    sent.now += WELL
    sent.appends.tick(sent.now)
    sent.failed(ONE, few)

    assert {ONE} == alone  # whatever else there is, nothing says that it fails
