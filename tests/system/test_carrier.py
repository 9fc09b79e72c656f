# The carrier of a node, and what is appended through it and read, while processes are killed and stopped.
#
# In the tests of appending, the carrier and Redis are those of a node, and the workers are whole workers whose link a
# test uses, as no client does so far (tests/carrier/log_worker.py).
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.config.schema import Kafka
from supervisor.metrics import CARRIER_COUNTERS, CARRIER_GAUGES
from tests.carrier.conftest import UNCLOSED
from tests.carrier.processes import RunningCarrier, RunningWorker, Stage, named, numbers
from tests.kafka_servers import kafka, topic_name
from tests.redis_servers import SERVERS, RunningRedis
from tests.system import node
from tests.system.nodes import Node, StartNode, lives, stop
from tests.system.processes import PATIENCE, free_port, packages, refused_start

__all__ = ["kafka"]  # a fixture

pytestmark = pytest.mark.weir_only("a matter of Weir's processes")

COUNT = 2000  # packs of each writer
SETTINGS = {"application__clients": '[{client = "app-*"}]', "store__durability": "process"}


def carrier_of(weir: Node) -> dict[str, Any]:
    told: dict[str, Any] = node.status(weir.control)["carrier"]
    return told


def joined(weir: Node, workers: int, former: int = 0) -> Callable[[], bool]:
    """Whether a carrier, not *former*, has the lanes of *workers*."""

    def check() -> bool:
        told = carrier_of(weir)
        report = told["report"]
        assert isinstance(report, dict)
        return told["pid"] != former and told["state"] == "serving" and report.get("workers") == workers

    return check


# The carrier of a node.


def test_a_node_has_a_carrier_that_all_workers_are_joined_to(start_node: StartNode) -> None:
    """A worker could append nothing."""
    weir = start_node(2, **SETTINGS)
    weir.wait_until(joined(weir, 2), "join its workers to the carrier")
    told = carrier_of(weir)

    assert ("redis", [], 0) == (told["log"], told["hosts"], told["deaths"])
    assert {name for name, _ in (*CARRIER_COUNTERS, *CARRIER_GAUGES)} <= told["report"].keys()
    pid = told["pid"]
    assert isinstance(pid, int)
    assert b"broker.carrier" in Path(f"/proc/{pid}/cmdline").read_bytes()
    weir.end()
    assert not lives(pid)
    assert [pid] == [line["pid"] for line in weir.lines("carrier_stopped")]


def test_without_logs_a_node_has_no_carrier(start_node: StartNode) -> None:
    """Who needs no logs would pay for a process."""
    weir = start_node(1)

    assert node.status(weir.control)["carrier"] is None
    assert [] == weir.lines("carrier_ready")


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_carrier_that_dies_or_hangs_is_replaced(start_node: StartNode, fault: signal.Signals) -> None:
    """No log would be served until somebody starts the node again."""
    weir = start_node(2, **SETTINGS)
    weir.wait_until(joined(weir, 2), "join its workers to the carrier")
    pid = carrier_of(weir)["pid"]
    assert isinstance(pid, int)
    if fault == signal.SIGSTOP:
        stop(pid)
    else:
        os.kill(pid, fault)
    died = weir.wait_for("carrier_died")
    weir.wait_until(joined(weir, 2, pid), "join its workers to the next carrier")

    assert ("killed_because" in died) == (fault == signal.SIGSTOP)
    assert [] == weir.lines("worker_died")
    assert not lives(pid)


def test_a_new_worker_is_joined_to_the_carrier(start_node: StartNode) -> None:
    """After the death of a worker its clients would have no log."""
    weir = start_node(2, **SETTINGS)
    weir.wait_until(joined(weir, 2), "join its workers to the carrier")
    pids = weir.pids
    os.kill(pids[0], signal.SIGKILL)
    weir.wait_for("worker_died")
    weir.wait_until(lambda: node.serves(weir.control) and pids[0] not in weir.pids, "serve again")

    weir.wait_until(joined(weir, 2), "join the new worker")
    assert [] == weir.lines("carrier_died")


def test_no_carrier_outlives_its_supervisor(start_node: StartNode) -> None:
    """It would append for workers that are gone, beside the carrier of the next node."""
    weir = start_node(1, **SETTINGS)
    pid = carrier_of(weir)["pid"]
    assert isinstance(pid, int)
    end = os.pidfd_open(pid)
    weir.process.kill()
    weir.process.wait()

    assert [end] == select.select([end], [], [], PATIENCE)[0]
    os.close(end)


# Its log.


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RunningRedis]:
    server = RunningRedis(SERVERS[-1], tmp_path / "redis", "appendfsync no\n")  # it survives kill -9
    yield server
    server.end()


@pytest.fixture
def stage(redis: RunningRedis) -> Iterator[Stage]:
    one = Stage(redis.address)
    yield one
    one.close()


def replace_worker(stage: Stage, worker: RunningWorker) -> RunningWorker:
    worker.kill()
    stage.workers.remove(worker)
    return stage.start_worker()


def check(stage: Stage, writer: RunningWorker, reader: RunningWorker, partitions: int, all_of_it: bool = True) -> None:
    """All that *writer* was told to be stored is read once, and in order."""

    def read() -> set[int]:
        found: set[int] = set()
        for bodies in reader.got.values():
            found.update(numbers(bodies).get(named(writer), []))
        return found

    def enough() -> bool:
        return sum(map(len, reader.got.values())) >= len(writer.stored) and read() >= {*writer.stored}

    stage.until(enough, "what was stored")
    for partition in range(partitions):
        mine = numbers(reader.got.get(partition, [])).get(named(writer), [])
        assert mine == sorted(set(mine)), f"partition {partition} has some twice, or in another order"
    if all_of_it:
        assert read() == set(range(COUNT))
    assert ([], []) == (writer.refused, reader.troubles)


def test_what_is_appended_at_one_worker_is_read_at_another(stage: Stage) -> None:
    """Messages would be lost, or come twice or in another order."""
    one, two = stage.start_worker(), stage.start_worker()
    stage.create(one, "t", 3)
    for worker in (one, two):
        for partition in range(3):
            worker.read("t", partition)
        worker.write("t", COUNT, 3)
    stage.until(lambda: one.written and two.written, "what was written")
    for writer in (one, two):
        for reader in (one, two):
            check(stage, writer, reader, 3)

    for worker in (one, two):
        stage.until(lambda worker=worker: stage.count(worker).held == 0)  # type: ignore[misc]
        assert 0 == stage.count(worker).unstored


@pytest.mark.parametrize("fault", ["kill carrier", "stop carrier", "kill redis", "stop redis"])
def test_nothing_is_lost_or_doubled_when_what_workers_need_dies(stage: Stage, redis: RunningRedis, fault: str) -> None:
    """A carrier and Redis may end at any moment, with packs and records on their way."""
    writer, reader = stage.start_worker(), stage.start_worker()
    stage.create(writer, "t", 3)
    for partition in range(3):
        reader.read("t", partition)
    writer.write("t", COUNT, 3)
    for part in (1, 2, 3, 4):
        stage.until(lambda part=part: len(writer.stored) >= part * COUNT // 5)  # type: ignore[misc]
        if fault == "kill carrier":
            stage.carrier.kill()
            stage.start_carrier()
        elif fault == "stop carrier":  # what it had sent may be carried out later than what its successor sends
            former = stage.carrier
            former.pause()
            stage.start_carrier()
            stage.until(lambda part=part: len(writer.stored) > part * COUNT // 5 + 20)  # type: ignore[misc]
            former.kill()
        elif fault == "kill redis":
            redis.kill()
            redis.start()
        else:
            redis.pause()
            stage.count(writer)
            redis.go_on()
    stage.until(lambda: writer.written, "what was written")

    check(stage, writer, reader, 3)
    assert (5 if "carrier" in fault else 1) == stage.count(writer).carriers


def test_what_a_dead_worker_was_told_to_be_stored_is_read(stage: Stage) -> None:
    """Publishers were answered: a worker that dies takes nothing with it that was stored."""
    reader = stage.start_worker()
    stage.create(reader, "t", 2)
    for partition in range(2):
        reader.read("t", partition)
    dead = []
    writer = stage.start_worker()
    for _ in range(3):
        writer.write("t", COUNT, 2)
        stage.until(lambda: len(writer.stored) > COUNT // 4)  # noqa: B023
        dead.append(writer)
        writer = replace_worker(stage, writer)
    writer.write("t", COUNT, 2)
    stage.until(lambda: writer.written, "what was written")

    check(stage, writer, reader, 2)
    for one in dead:
        check(stage, one, reader, 2, all_of_it=False)


def test_a_worker_goes_on_reading_where_a_dead_one_was(stage: Stage) -> None:
    """A client that comes back to another worker would miss messages, or get some twice."""
    writer, reader = stage.start_worker(), stage.start_worker()
    stage.create(writer, "t")
    reader.read("t")
    bodies: list[str] = []
    part = COUNT // 4
    for number in range(3):
        stage.until(lambda: len(writer.written) == number, "what was written before")  # noqa: B023
        writer.write("t", part, first=number * part)
        stage.until(lambda: len(reader.got.get(0, [])) > part // 4)  # noqa: B023
        reader.kill()
        while not reader.ended:
            reader.take()
        bodies += reader.got[0]
        position = reader.positions[0]
        stage.workers.remove(reader)
        reader = stage.start_worker()
        reader.read("t", position=position)
    stage.until(lambda: len(writer.written) == 3, "what was written before")
    writer.write("t", part, first=3 * part)
    stage.until(lambda: len(writer.written) == 4, "what was written")
    reader.got[0] = bodies + reader.got.get(0, [])

    check(stage, writer, reader, 1)


def test_a_worker_that_is_stopped_holds_nobody_up(stage: Stage) -> None:
    """One worker that hangs would stop the readers and writers of all others."""
    writer, reader, hung = (stage.start_worker() for _ in range(3))
    stage.create(writer, "t")
    for worker in (reader, hung):
        worker.read("t")
    stage.count(hung)
    hung.pause()
    writer.write("t", COUNT, size=2000)
    stage.until(lambda: writer.written, "what was written")
    check(stage, writer, reader, 1)
    hung.go_on()

    check(stage, writer, hung, 1)


@UNCLOSED
def test_kafka_may_have_the_log(redis: RunningRedis, kafka: Any) -> None:
    """With Kafka nothing would be stored, or it be lost with a carrier."""
    stage = Stage(redis.address, Kafka(hosts=(kafka.address,)))
    writer, reader = stage.start_worker(), stage.start_worker()
    topic = topic_name()
    stage.create(writer, topic, 3)
    for partition in range(3):
        reader.read(topic, partition)
    writer.write(topic, COUNT, 3)
    stage.until(lambda: len(writer.stored) > COUNT // 4)
    stage.carrier.kill()
    stage.start_carrier()
    stage.until(lambda: writer.written, "what was written")
    check(stage, writer, reader, 3)
    stage.close()


# Its start.


def started(carrier: RunningCarrier) -> None:
    while not (carrier.ready or carrier.ended):
        carrier.take()
        os.sched_yield()


def test_a_node_whose_log_cannot_be_used_does_not_start(tmp_path: Path) -> None:
    """Its clients would wait for what never comes."""
    hosts = f"127.0.0.1:{free_port()}"
    said = refused_start(free_port(), tmp_path, {"kafka.hosts": hosts}, packages())

    assert said.splitlines()[-1].startswith(f"weir: Kafka at {hosts} cannot be used: the log ")


def test_a_log_that_cannot_be_used_is_one_sentence(redis: RunningRedis, tmp_path: Path) -> None:
    """The node would start without that for which it was started, and say so nowhere."""
    port = free_port()
    kafka = Kafka(hosts=(f"127.0.0.1:{port}",))
    away = RunningCarrier(redis.address, kafka)
    missing = RunningCarrier(redis.address, Kafka(hosts=kafka.hosts, password_file=str(tmp_path / "missing")))
    tries_on = RunningCarrier(redis.address, kafka, required=False)
    for carrier in (away, missing, tries_on):
        started(carrier)

    assert away.sentence.startswith(f"Kafka at 127.0.0.1:{port} cannot be used: the log ")
    assert f"Cannot read kafka.password_file = {tmp_path / 'missing'}: No such file or directory." == missing.sentence
    assert tries_on.ready
    assert "log_unusable" in tries_on.log()
    for carrier in (away, missing, tries_on):
        carrier.close()
