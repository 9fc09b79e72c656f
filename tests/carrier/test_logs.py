# What both logs promise, against real servers.
import pytest

from broker.reasons import LogFailure
from broker.store.logs.records import Pack, Position
from broker.store.logs.topics import LogError, TopicProperties
from tests.carrier.logs import SMALL, Stage
from tests.kafka_servers import topic_name

A = 0xA000_0000_0000_0001  # sources
B = 0xB000_0000_0000_0002


def packs(source: int, first: int, count: int) -> list[Pack]:
    return [Pack(source, number, f"{source:x} {number}".encode()) for number in range(first, first + count)]


def test_what_is_appended_is_read_in_order(stage: Stage) -> None:
    """Messages of a publisher would change places, or not come."""
    partition = stage.topic()
    pages = stage.read(partition)

    offsets = stage.append(partition, *packs(A, 1, 5))
    offsets += stage.append(partition, *packs(A, 6, 1))
    stage.until(lambda: len(pages.packs) >= 6)

    assert packs(A, 1, 6) == pages.packs
    assert [0] * 5 + [1] == offsets  # packs of one turn share a record
    assert [0, 1] == [record.offset for record in pages.records]
    assert 0 == stage.log.statistics().waiting == stage.log.statistics().waiting_bytes


def test_a_reading_begins_at_its_position_in_its_partition(stage_at_night: Stage) -> None:
    """A client would get again what it has acknowledged, or what is another's."""
    stage = stage_at_night
    first = stage.topic(TopicProperties(partitions=2))
    second = first._replace(number=1)
    for number in range(1, 4):
        stage.append(first, *packs(A, number, 1))
    stage.append(second, *packs(B, 1, 1))

    late = stage.read(first, Position(2))
    other = stage.read(second)
    stage.until(lambda: late.packs and other.packs)

    assert packs(A, 3, 1) == late.packs
    assert packs(B, 1, 1) == other.packs
    assert [] == late.jumps


def test_a_reading_that_is_paused_holds_up_no_other_one(stage: Stage) -> None:
    """One slow client would stop those that read the same topic, or be given more than it can hold."""
    partition = stage.topic()
    slow, quick = stage.read(partition), stage.read(partition)
    stage.append(partition, *packs(A, 1, 1))
    stage.until(lambda: slow.packs and quick.packs)

    slow.reading.pause()
    for number in range(2, 30):
        stage.append(partition, *packs(A, number, 1))
    stage.until(lambda: len(quick.packs) == 29)
    before = len(slow.packs)
    slow.reading.resume()
    stage.until(lambda: len(slow.packs) == 29)

    assert 1 == before
    assert packs(A, 1, 29) == slow.packs == quick.packs


def test_a_reading_that_is_stopped_is_given_nothing(stage_at_night: Stage) -> None:
    """What comes for a client that has left would reach the one that follows, twice."""
    stage = stage_at_night
    partition = stage.topic()
    stage.append(partition, *packs(A, 1, 1))
    gone = stage.read(partition)
    gone.reading.stop()
    stays = stage.read(partition)
    stage.until(lambda: stays.packs)

    assert [] == gone.packs


def test_a_pack_that_was_appended_twice_is_read_once(stage: Stage) -> None:
    """A message of QoS 2 would come twice after a fault of the log or the carrier."""
    partition = stage.topic()
    stage.append(partition, *packs(A, 1, 3))
    stage.append(partition, *packs(B, 1, 1))
    pages = stage.read(partition)
    stage.until(lambda: len(pages.packs) == 4)
    position = Position()
    for record in pages.records[:1]:
        position.advance(record)

    stage.append(partition, *packs(A, 2, 3))
    resumed = stage.read(partition, Position.decode(position.encode()))
    stage.until(lambda: len(pages.packs) == 5 and len(resumed.packs) == 2)

    assert [*packs(A, 1, 3), *packs(B, 1, 1), *packs(A, 4, 1)] == pages.packs
    assert [*packs(B, 1, 1), *packs(A, 4, 1)] == resumed.packs
    assert 4 == stage.log.statistics().repeated


def test_a_client_that_is_slow_again_and_again_misses_and_doubles_nothing(stage: Stage) -> None:
    """What is dropped when a client becomes slow would not be read again, or a part of it be taken for a gap."""
    partition = stage.topic()
    pages = stage.read(partition)
    for number in range(1, 101):
        assert stage.log.append(partition, packs(A, number, 1)[0], lambda offset, error: None)
        stage.turn()
        if number % 3 == 0:
            pages.reading.pause()
        elif number % 3 == 1:
            pages.reading.resume()
    pages.reading.resume()
    stage.until(lambda: len(pages.packs) >= 100)

    assert packs(A, 1, 100) == pages.packs
    assert [] == pages.jumps


def test_what_waits_is_bounded_in_bytes(stage_at_night: Stage) -> None:
    """A log that is away would fill the memory of the carrier."""
    stage = stage_at_night
    partition = stage.topic()
    large = Pack(A, 1, bytes(SMALL))
    stored: list[int] = []

    taken = [stage.log.append(partition, one, lambda offset, _: stored.append(offset)) for one in (large, large)]
    waiting = stage.log.statistics().waiting
    refused = stage.log.statistics().refused

    assert [True, False] == taken
    assert (1, 1) == (waiting, refused)


def test_a_topic_is_made_once_and_described(stage: Stage) -> None:
    """Two nodes that make the same topic would disturb each other, or the user not be told what is there."""
    topic = topic_name()
    properties = TopicProperties(partitions=3, retention=3600, retention_bytes=10_000_000)

    assert stage.describe(topic) is None
    assert [None, None] == [stage.create(topic, properties) for _ in range(2)]
    error = stage.create(topic, TopicProperties(partitions=2))
    stage.append(stage.topic()._replace(topic=topic, number=1), *packs(A, 1, 1))
    found = stage.describe(topic)

    assert isinstance(error, LogError)
    assert error.failure is LogFailure.OTHER_TOPIC
    assert f"{topic} has partitions: 3, and not 2" in str(error)
    assert found is not None
    assert (3, 3600, 10_000_000) == (
        found.properties.partitions,
        found.properties.retention,
        found.properties.retention_bytes,
    )
    assert ([0, 0, 0], [0, 1, 0]) == (found.first, found.next)


def test_a_topic_that_cannot_be_made_does_not_hinder_others(stage: Stage) -> None:
    """A thousand services that connect at once would get no log, as there is one with another number of partitions."""
    other = stage.topic().topic
    first, last = topic_name(), topic_name()
    told: list[tuple[str, LogFailure | None]] = []

    def create(topic: str, partitions: int = 1) -> None:
        def then(error: LogError | None) -> None:
            told.append((topic, None if error is None else error.failure))

        stage.log.create(topic, TopicProperties(partitions=partitions), then)

    create(first)
    create(other, partitions=2)
    create(last)
    stage.until(lambda: len(told) == 3)

    assert [(first, None), (other, LogFailure.OTHER_TOPIC), (last, None)] == told


def test_what_is_appended_to_a_missing_topic_waits_for_it(stage: Stage) -> None:
    """Messages would be lost, or nobody be told what is missing, or that it is there again."""
    partition = stage.topic()._replace(topic=topic_name())
    stored: list[int] = []
    pages = stage.read(partition)

    assert stage.log.append(partition, packs(A, 1, 1)[0], lambda offset, _: stored.append(offset))
    stage.until(lambda: stage.log.statistics().failing and pages.errors)
    words = stage.log.statistics().failing[partition]
    assert stage.create(partition.topic, TopicProperties()) is None
    stage.until(lambda: stored and pages.packs)

    assert f"{LogFailure.UNKNOWN_TOPIC.words} ({partition.topic})" == words == str(pages.errors[0])
    assert {} == stage.log.statistics().failing
    assert packs(A, 1, 1) == pages.packs
    assert 1 == pages.recoveries


def test_a_topic_that_is_there_again_is_told_though_nothing_is_in_it(stage: Stage) -> None:
    """`weir why` would say of an idle client that its log cannot be read, for as long as nothing is published."""
    partition = stage.topic()._replace(topic=topic_name())
    pages = stage.read(partition)
    stage.until(lambda: pages.errors)
    assert stage.create(partition.topic, TopicProperties()) is None
    stage.until(lambda: pages.recoveries)

    assert (1, []) == (len(pages.errors), pages.records)


def test_a_record_that_cannot_be_decoded_is_skipped_and_told(stage_at_night: Stage) -> None:
    """One bad record would stop a client for ever."""
    stage = stage_at_night
    partition = stage.topic()
    stage.append(partition, *packs(A, 1, 1))
    stage.append_raw(partition, b"\x01not a record")
    stage.append(partition, *packs(A, 2, 1))

    pages = stage.read(partition)
    stage.until(lambda: len(pages.packs) == 2)

    assert [(1, b"\x01not a record", "a record with another checksum than its content")] == pages.broken
    assert 1 == stage.log.statistics().damaged
    assert [0, 2] == [record.offset for record in pages.records]


def test_a_reader_that_retention_has_overtaken_is_told_what_it_missed(stage_at_night: Stage) -> None:
    """A client would not be told that messages are gone."""
    stage = stage_at_night
    partition = stage.topic()
    for number in range(1, 6):
        stage.append(partition, *packs(A, number, 1))
    stage.delete_before(partition, 3)

    pages = stage.read(partition, Position(1))
    stage.until(lambda: len(pages.packs) == 2)
    found = stage.describe(partition.topic)

    assert [(1, 3)] == pages.jumps
    assert packs(A, 4, 2) == pages.packs
    assert found is not None and [3] == found.first


def test_a_reader_beyond_the_end_begins_anew(stage_at_night: Stage) -> None:
    """A client of a topic that was deleted and made again would wait until it is as long as the former one."""
    stage = stage_at_night
    partition = stage.topic()
    stage.append(partition, *packs(A, 1, 1))

    pages = stage.read(partition, Position(7))
    stage.until(lambda: pages.packs)

    assert [(7, 0)] == pages.jumps
    assert packs(A, 1, 1) == pages.packs


def test_a_topic_that_was_deleted_is_made_again(stage_at_night: Stage) -> None:
    """One mistake in an administrator's tool would end a client for good."""
    stage = stage_at_night
    partition = stage.topic()
    stage.append(partition, *packs(A, 1, 1))
    stage.delete_outside(partition.topic)

    offsets = stage.append(partition, *packs(A, 2, 1))
    pages = stage.read(partition)
    stage.until(lambda: pages.packs)

    assert [0] == offsets
    assert packs(A, 2, 1) == pages.packs


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    stage_at_night: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had read three records of the former topic would miss three of the new one, and nobody would know."""
    monkeypatch.setattr("broker.carrier.redis_log.TURN", 0.01)  # how often it looks
    stage = stage_at_night
    partition = stage.topic()
    waits, pauses, leaves = (stage.read(partition) for _ in range(3))
    for number in range(1, 4):
        stage.append(partition, *packs(A, number, 1))
    stage.until(lambda: all(len(pages.packs) == 3 for pages in (waits, pauses, leaves)))
    pauses.reading.pause()
    leaves.reading.stop()
    saved = leaves.reading.position.encode()

    stage.delete_outside(partition.topic)
    for number in range(4, 9):
        stage.append(partition, *packs(A, number, 1))
    pauses.reading.resume()
    stage.read(partition, Position.decode(saved), leaves)
    stage.until(lambda: all(len(pages.packs) == 8 for pages in (waits, pauses, leaves)))

    assert packs(A, 1, 8) == waits.packs == pauses.packs == leaves.packs
    assert [(3, 0)] == waits.jumps == pauses.jumps == leaves.jumps


def test_a_topic_that_is_deleted_is_gone_with_its_records(stage_at_night: Stage) -> None:
    """The messages of a client that is deleted would be kept."""
    stage = stage_at_night
    partition = stage.topic()
    stage.append(partition, *packs(A, 1, 1))
    stage.delete(partition.topic)
    stage.delete(partition.topic)
    gone = stage.describe(partition.topic)
    stage.create(partition.topic, TopicProperties())
    again = stage.describe(partition.topic)

    assert gone is None
    assert again is not None and [0] == again.next


def test_a_topic_that_was_made_anew_is_not_deleted_for_the_former_one(stage: Stage) -> None:
    """What a new session was sent would be gone: a deletion may come late, or be done twice."""
    partition = stage.topic()
    stage.append(partition, *packs(A, 1, 1))
    former = stage.describe(partition.topic)
    assert former is not None
    stage.delete(partition.topic, former.log)
    gone = stage.describe(partition.topic)
    assert stage.create(partition.topic, TopicProperties()) is None
    stage.append(partition, *packs(A, 2, 1))
    stage.delete(partition.topic, former.log)
    new = stage.describe(partition.topic)
    pages = stage.read(partition)
    stage.until(lambda: pages.packs)

    assert gone is None
    assert new is not None and former.log != new.log
    assert packs(A, 2, 1) == pages.packs
    assert [new.log] == [record.log for record in pages.records]


def test_a_topic_that_is_asked_for_right_behind_its_deletion_is_there(stage: Stage) -> None:
    """It would be refused, as it is not as it was, or be deleted with the former one."""
    partition = stage.topic()
    wanted = TopicProperties(partitions=2)
    told: list[LogError | None] = []
    stage.log.delete(partition.topic, b"", told.append)
    stage.log.create(partition.topic, wanted, told.append)
    stage.until(lambda: len(told) == 2)
    found = stage.describe(partition.topic)

    assert [None, None] == told
    assert found is not None and [0, 0] == found.next


def test_nothing_is_lost_or_doubled_when_the_server_is_killed(stage_at_night: Stage) -> None:
    """What was acknowledged would be missing after a crash of the server, or come twice."""
    stage = stage_at_night
    partition = stage.topic()
    pages = stage.read(partition)
    stored: list[int] = []
    sent = 0
    for _ in range(3):
        for _ in range(20):
            sent += 1
            assert stage.log.append(partition, packs(A, sent, 1)[0], lambda offset, _: stored.append(offset))
            stage.turn()
        stage.server.kill()
        for _ in range(5):
            sent += 1
            assert stage.log.append(partition, packs(A, sent, 1)[0], lambda offset, _: stored.append(offset))
            stage.turn()
        stage.server.start()
    stage.until(lambda: len(stored) == sent and len(pages.packs) == sent)

    assert packs(A, 1, sent) == pages.packs
    assert stored == sorted(stored)


def test_a_server_that_stands_still_delays_and_loses_nothing(stage_at_night: Stage) -> None:
    """What came while the server was stopped would be lost, or come twice when it goes on."""
    stage = stage_at_night
    partition = stage.topic()
    pages = stage.read(partition)
    stage.append(partition, *packs(A, 1, 1))
    stored: list[int] = []

    stage.server.pause()
    for pack in packs(A, 2, 20):
        assert stage.log.append(partition, pack, lambda offset, _: stored.append(offset))
        stage.turn()
    while_it_stood = len(stored)
    stage.server.go_on()
    stage.until(lambda: len(stored) == 20 and len(pages.packs) == 21)

    assert 0 == while_it_stood
    assert packs(A, 1, 21) == pages.packs


def test_a_log_whose_server_comes_later_begins_then(stage_at_night: Stage) -> None:
    """A node that is started before its log would never have it."""
    stage = stage_at_night
    partition = stage.topic()
    stage.server.kill()
    late = type(stage)(stage.server)  # type: ignore[call-arg]
    stored: list[int] = []
    try:
        assert late.log.append(partition, packs(A, 1, 1)[0], lambda offset, _: stored.append(offset))
        pages = late.read(partition)
        late.until(lambda: late.log.statistics().failing)
        stage.server.start()
        late.until(lambda: stored and pages.packs)
    finally:
        late.close()

    assert [0] == stored
    assert packs(A, 1, 1) == pages.packs
