# What a message in a log costs: python -m tests.tools.bench.log_cost [kafka|redis] [--partitions 10] [--idle 1000]
#
# CPU of this process and of the server, in microseconds a message of 110 bytes: appended and acknowledged, then read by
# readings of the same process. Paced: a pack to each partition, and the next ones when all are stored, as on a calm
# node. Flood: as many as may wait, so that packs share records.
#
# With --idle only what many readings cost that wait for records, each of a topic of its own; and how long it takes
# beside them until a new reading, one that is resumed and one that waits have a record.
import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from broker.store.logs.records import Pack
from broker.store.logs.topics import Partition, TopicProperties
from tests.carrier.logs import KafkaStage, Pages, RedisStage, Stage
from tests.kafka_servers import KafkaServer
from tests.redis_servers import SERVERS, RunningRedis

MESSAGE: Final = 110  # bytes
MESSAGES: Final = (1, 20, 200)  # in a pack
PACKS: Final = 1000
IDLE: Final = 10.0  # seconds
SETTLE: Final = 20.0  # seconds
TIMES: Final = 100


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU that a message in a log costs.")
    parser.add_argument("log", nargs="?", choices=["kafka", "redis"])
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--idle", type=int, default=0, help="readings that wait (default: the cost of messages)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.log != "kafka":
            redis = RunningRedis(SERVERS[-1], Path(folder))
            run("redis", RedisStage(redis), redis.process.pid, options)
            redis.end()
        if options.log != "redis":
            kafka: Any = KafkaServer(Path(folder, "kafka"), quick=False)
            kafka.start()
            run("kafka", KafkaStage(kafka), kafka.process.pid, options)
            kafka.kill()


def run(name: str, stage: Stage, server: int, options: argparse.Namespace) -> None:
    if options.idle:
        measure_idle(name, stage, server, options.idle)
    else:
        measure(name, stage, server, options.partitions)
    stage.close()


def measure_idle(name: str, stage: Stage, server: int, readings: int) -> None:
    began = time.monotonic()
    topics = [stage.topic() for _ in range(readings)]
    took = time.monotonic() - began
    print(f"{name}: {1000 * took / readings:.1f} ms to make a topic, one after the other", flush=True)
    while_before(stage, time.monotonic() + SETTLE)  # the server has compiled by then
    print(f"  no readings: {share(cost(server, lambda: while_before(stage, time.monotonic() + IDLE)))}", flush=True)
    waiting = [stage.read(topic) for topic in topics]
    while_before(stage, time.monotonic() + SETTLE)
    assert not any(pages.errors for pages in waiting)
    print(
        f"  {readings} that wait: {share(cost(server, lambda: while_before(stage, time.monotonic() + IDLE)))}",
        flush=True,
    )
    full = stage.topic()
    stage.append(full, Pack(1, 1, bytes(MESSAGE)))
    added, resumed, came = [], [], []
    for number in range(TIMES):
        began = time.monotonic()
        pages = stage.read(full)
        stage.until(lambda pages=pages: pages.packs)  # type: ignore[misc]
        added.append(time.monotonic() - began)
        pages.reading.stop()
        pages = waiting[number % readings]
        pages.reading.pause()
        stage.append(pages.reading.partition, Pack(1, 2 * number + 1, bytes(MESSAGE)))
        began = time.monotonic()
        pages.reading.resume()
        stage.until(lambda pages=pages: pages.packs)  # type: ignore[misc]
        resumed.append(time.monotonic() - began)
        pages = waiting[(number + readings // 2) % readings]
        pages.records.clear()
        began = time.monotonic()
        stage.append(pages.reading.partition, Pack(2, 2 * number + 2, bytes(MESSAGE)))
        stage.until(lambda pages=pages: pages.packs)  # type: ignore[misc]
        came.append(time.monotonic() - began)
        while_before(stage, time.monotonic() + 0.02 * (number % 7))
        waiting[number % readings].records.clear()
    for what, times in (("a new one", added), ("a resumed one", resumed), ("one that waits, appended", came)):
        times.sort()
        half, most = 1000 * times[len(times) // 2], 1000 * times[-1]
        print(f"  first record of {what}: p50 {half:.1f} ms, longest of {TIMES} {most:.1f} ms", flush=True)


def share(seconds: tuple[float, float, float]) -> str:
    here, there, took = seconds
    return f"{100 * here / took:.1f} % + {100 * there / took:.1f} % of a core"


def measure(name: str, stage: Stage, server: int, partitions: int) -> None:
    print(f"{name}: microseconds of CPU a message, here + server; messages a second; packs a record")
    topic = stage.topic(TopicProperties(partitions=partitions)).topic
    each = [Partition(topic, number) for number in range(partitions)]
    sequence = 0
    for paced in (True, False):
        for messages in (1, *MESSAGES):  # the first one again: the server has compiled by then
            body = bytes(MESSAGE * messages)
            packs = [Pack(1, sequence + 1 + number, body) for number in range(PACKS)]
            sequence += PACKS
            append(stage, each, packs[:100], True)
            pages = [read_on(stage, partition) for partition in each]
            records = stage.log.statistics().stored_records
            append_cost = cost(server, lambda packs=packs, paced=paced: append(stage, each, packs, paced))  # type: ignore[misc]
            records = stage.log.statistics().stored_records - records
            for one in pages:
                one.reading.resume()
            read_cost = cost(server, lambda pages=pages: read(stage, pages))  # type: ignore[misc]
            for one in pages:
                one.reading.stop()
            print(
                f"  {'paced' if paced else 'flood'} {messages:4} in a pack: append {words(append_cost, messages)}, "
                f"{PACKS / records:5.1f} packs a record; read {words(read_cost, messages)}"
            )


def read_on(stage: Stage, partition: Partition) -> Pages:
    """A reading that goes on behind what there is, when it is resumed."""
    from broker.store.logs.records import Position

    found = stage.describe(partition.topic)
    assert found is not None
    pages = stage.read(partition, Position(found.next[partition.number]))
    pages.reading.pause()
    return pages


def append(stage: Stage, partitions: list[Partition], packs: list[Pack], paced: bool) -> None:
    stored = 0

    def done(offset: int, error: object) -> None:
        nonlocal stored
        assert error is None
        stored += 1

    for at in range(0, len(packs), len(partitions)):
        for partition, pack in zip(partitions, packs[at : at + len(partitions)], strict=False):
            while not stage.log.append(partition, pack, done):
                stage.turn()
        if paced:
            stage.log.flush()
            due = at + len(partitions)
            stage.until(lambda due=due: stored >= min(due, len(packs)))  # type: ignore[misc]
    stage.until(lambda: stored == len(packs))


def read(stage: Stage, pages: list[Pages]) -> None:
    stage.until(lambda: sum(len(one.packs) for one in pages) >= PACKS)


def while_before(stage: Stage, end: float) -> None:
    while time.monotonic() < end:
        stage.turn()


def cost(server: int, work: Callable[[], None]) -> tuple[float, float, float]:
    """Seconds of CPU of this process and of *server* while *work* is done, and of time."""
    here, there, began = time.process_time(), cpu(server), time.monotonic()
    work()
    return time.process_time() - here, cpu(server) - there, time.monotonic() - began


def cpu(pid: int) -> float:
    """Seconds of CPU of the threads of *pid*; times(2) would count in hundredths."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def words(seconds: tuple[float, float, float], messages: int) -> str:
    here, there, took = seconds
    count = PACKS * messages
    return f"{1e6 * here / count:6.2f} +{1e6 * there / count:6.2f} us, {count / took:9,.0f} a second"


if __name__ == "__main__":
    main()
