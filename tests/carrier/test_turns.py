# The turns of the carrier: when the log is flushed and ticked, and when workers are told its status.
from math import inf

from broker.carrier.appends import MOST_BYTES
from broker.carrier.turns import LOGGED, STATUS, TICK, FailingPartitions, Turns
from broker.store.logs import frames
from broker.store.logs.topics import Partition
from tests.carrier.test_worker_lanes import PaperLog, Worker
from tests.store.loop import Lines


def never(when: float) -> None:
    raise AssertionError("nothing is due soon")


class Connection:
    def __init__(self) -> None:
        self.due = 1e9
        self.ticks = 0

    def tick(self, now: float) -> float:
        self.ticks += 1
        return self.due


def statuses(worker: Worker) -> list[tuple[int, list[tuple[str, int, str]]]]:
    """Bytes that wait, and what fails, as told since the last call."""
    found = []
    for kind, body in worker.control.frames():
        if kind == frames.STATUS:
            status = frames.read_status(body, 0, len(body))
            found.append((status.waiting_bytes, status.named))
    return found


def test_a_turn_sends_what_was_appended_and_confirms_what_was_stored() -> None:
    """Packs would wait for the next tick: milliseconds for each publish."""
    log = PaperLog()
    worker = Worker(log)
    turns = Turns(log, [], Lines(), never)
    turns.join(worker.lanes)
    worker.append(1)
    log.done[0](5, None)
    worker.control.frames()
    assert not turns.work(0.0)

    assert 1 == log.flushes
    assert [frames.STORED] == [kind for kind, _ in worker.control.frames()]


def test_what_may_not_be_sent_yet_is_sent_when_it_is_time() -> None:
    """Packs that came too early would wait for the next tick, 50 ms later."""
    log = PaperLog()
    asked: list[float] = []
    turns = Turns(log, [], Lines(), asked.append)
    log.flush_again = 10.002
    turns.work(0.0)
    assert [10.002] == asked
    assert 10.002 == turns.tick(10.0)
    log.flush_again = inf
    turns.work(0.0)

    assert 10.0 + TICK == turns.tick(10.002)


def test_the_log_has_its_ticks() -> None:
    """What failed would never be sent again; or a thousand readings be looked at in each turn."""
    log, connection = PaperLog(), Connection()
    turns = Turns(log, [connection], Lines(), never)
    assert 10.0 + TICK == turns.tick(10.0)
    connection.due = 10.01
    assert 10.01 == turns.tick(10.0 + TICK / 2)
    turns.tick(10.0 + TICK)

    assert [10.0, 10.0 + TICK] == log.ticks
    assert 3 == connection.ticks


def test_workers_are_told_each_second_and_at_once_when_something_fails() -> None:
    """`weir why` would name what failed an hour ago, or nothing."""
    log = PaperLog()
    worker, gone = Worker(log), Worker(log)
    turns = Turns(log, [], Lines(), never)
    for one in (worker, gone):
        turns.join(one.lanes)
    gone.lanes.close()
    log.statistics().waiting_bytes = 7
    turns.tick(10.0)
    assert [(7, [])] == statuses(worker)
    assert [worker.lanes] == turns.workers
    turns.tick(10.1)
    assert [] == statuses(worker)
    log.statistics().failing[Partition("t", 2)] = "it has no leader"
    turns.tick(10.2)
    assert [(7, [("t", 2, "it has no leader")])] == statuses(worker)
    turns.tick(10.3)
    assert [] == statuses(worker)
    log.statistics().unusable = "Kafka is away"
    turns.tick(10.4)
    assert [(7, [("t", 2, "it has no leader")])] == statuses(worker)
    turns.tick(10.4 + STATUS)

    assert [(7, [("t", 2, "it has no leader")])] == statuses(worker)
    assert [("t", 2, "it has no leader")] == turns.failing()


def test_a_turn_lets_workers_go_on_when_the_log_has_room() -> None:
    """Workers whose packs had to wait would wait for ever."""
    log = PaperLog()
    turns = Turns(log, [], Lines(), never)
    worker = Worker(log, full=turns.full)
    turns.join(worker.lanes)
    log.full = True
    log.statistics().waiting = 1
    log.statistics().waiting_bytes = MOST_BYTES
    assert not worker.append(1)
    turns.work(0.0)
    assert worker.data.paused
    log.statistics().waiting_bytes = 0
    turns.work(0.0)

    assert not worker.data.paused


def test_partitions_that_fail_are_logged_once_per_change() -> None:
    """Nobody would see in the log why publishers wait; or a Kafka that is away would fill it."""
    lines = Lines()
    failing = FailingPartitions(lines)
    wrong = {Partition("t", 2): "it has no leader (1)", Partition("u"): "it does not exist (u)"}
    failing.look(wrong)
    wrong[Partition("t", 2)] = "it has no leader (2)"
    failing.look(wrong)
    assert [
        {"topic": "t", "partition": 2, "why": "it has no leader (1)", "failing": 2},
        {"topic": "u", "partition": 0, "why": "it does not exist (u)", "failing": 2},
    ] == lines.named("log_partition_failed")
    wrong[Partition("t", 2)] = "the log cannot be reached"
    failing.look(wrong)
    failing.look({})
    assert "the log cannot be reached" == lines.named("log_partition_failed")[-1]["why"]
    assert ["t", "u"] == [line["topic"] for line in lines.named("log_partition_recovered")]
    lines.events.clear()
    for _ in range(2):
        failing.look({Partition("t", number): "away" for number in range(1000)})

    assert LOGGED == len(lines.events)
    assert 1000 == lines.named("log_partition_failed")[0]["failing"]


def test_turns_look_for_what_is_to_be_logged_each_second() -> None:
    """It would be logged at some later time, or each of a thousand topics at each turn."""
    log, lines = PaperLog(), Lines()
    turns = Turns(log, [], lines, never)
    log.statistics().failing[Partition("t")] = "it has no leader"
    turns.tick(10.0)
    log.statistics().failing.clear()
    turns.tick(10.5)
    assert 1 == len(lines.events)
    turns.tick(11.0)

    assert ["log_partition_failed", "log_partition_recovered"] == [event for event, _ in lines.events]


def test_workers_are_told_which_partitions_fail_while_the_log_answers() -> None:
    """The gate of a worker would be closed to everybody for one of them."""
    log = PaperLog()
    worker = Worker(log)
    turns = Turns(log, [], Lines(), never)
    turns.join(worker.lanes)
    statistics = log.statistics()
    statistics.failing.update({Partition("t"): "it has no leader", Partition("u", 1): "it took too long"})
    statistics.alone.add(Partition("t"))
    turns.tick(10.0)
    ((kind, body),) = worker.control.frames()

    assert frames.STATUS == kind
    assert {("t", 0)} == frames.read_status(body, 0, len(body)).alone
