# python -m tests.tools.bench.analysis: how far the analysis lags behind so many workers, and what it keeps.
#
# A process writes the records of all workers, spread over each second, into a Redis of its own (`--kafka`: into a Kafka
# of its own); the job reads them as ever. The delay is from the second of a record to when it can be read in Redis; a
# record is of the second before. `--kills N`: the job is a process that is killed so often on its way, and goes on. At
# the end the history and the windows are compared with what was written.
import argparse
import json
import multiprocessing
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

import pyarrow.parquet

from analytics.connector import jars
from analytics.job import Job, Settings
from analytics.rows import Status
from analytics.source import LIMIT
from analytics.spark import session
from tests.analytics.records import record, top
from tests.analytics.running import InProcess, KafkaLog, Log
from tests.kafka_servers import KafkaServer
from tests.redis_servers import SERVERS, RunningRedis

STEPS: Final = 20  # of a second, in which some of the workers write
HITTERS: Final = 25  # clients, and topics, of each record: about 6 KB
NODE: Final = 8  # workers of a node
EVERY: Final = 5.0  # seconds between two lines
PATIENCE: Final = 120.0  # seconds for Spark to start, or to go on after it was killed
LATEST: Final = 15.0  # seconds for what is left when the writer has ended
MESSAGES: Final = 5  # of a record
HELD_BACK: Final = {"credits": {"clients": 3, "pauses": 5, "ms": 700}}


class Into(Protocol):
    """Where the writer writes; it goes to another process before it is opened."""

    def open(self) -> "Callable[[list[tuple[int, str]]], object]":
        """Return what writes the bodies of some workers."""
        ...


class IntoRedis:
    def __init__(self, log: Log, workers: int) -> None:
        self._url = log.url
        self._key = log.keys.metrics
        self._length = 40 * workers

    def open(self) -> "Callable[[list[tuple[int, str]]], object]":
        import redis

        client = redis.Redis.from_url(self._url)

        def write(bodies: list[tuple[int, str]]) -> None:
            with client.pipeline(transaction=False) as line:
                for _, body in bodies:
                    line.xadd(self._key, {"record": body}, maxlen=self._length, approximate=True)
                line.execute()

        return write


class IntoKafka:
    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic

    def open(self) -> "Callable[[list[tuple[int, str]]], object]":
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self._address, acks="all", metrics_enabled=False)

        def write(bodies: list[tuple[int, str]]) -> None:
            sent = [
                producer.send(self._topic, key=f"{worker}".encode(), value=body.encode(), partition=0)
                for worker, body in bodies
            ]
            for one in sent:
                one.get(PATIENCE)

        return write


def write(into: Into, workers: int, seconds: int) -> None:
    """What *workers* write in so many seconds; each 60 s one of eight nodes is overloaded for 20."""
    put = into.open()
    bodies = [json.dumps(_record(worker), separators=(",", ":")) for worker in range(workers)]
    began = time.time()
    for step in range(seconds * STEPS):
        ahead = began + step / STEPS - time.time()
        if ahead > 0:
            time.sleep(ahead)
        now, second = time.time(), step // STEPS
        made = []
        for worker in range(step % STEPS, workers, STEPS):
            body = bodies[worker].replace('"ts":0', f'"ts":{now:.3f}').replace('"sequence":0', f'"sequence":{second}')
            if worker // NODE % 8 == 0 and second % 60 >= 40:
                body = body.replace('"level":0', '"level":6').replace('"cause":""', '"cause":"lag"')
            made.append((worker, body))
        put(made)


def _record(worker: int) -> dict[str, Any]:
    clients = {f"client-{worker}-{number}": 10_000 // (number + 1) for number in range(HITTERS)}
    topics = {f"topic/{number}/{worker % 10}": 10_000 // (number + 1) for number in range(HITTERS)}
    node = f"node{worker // NODE}"
    tops = {"clients": top("client", {f"client-{worker}-20": 700}, **clients), "topics": top("topic", **topics)}
    return record(ts=0, node=node, worker=worker % NODE, boot=f"boot-{worker}", paused=HELD_BACK, top=tops)


def measure(workers: int, seconds: int, master: str, kafka: bool, kills: int) -> None:
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as running:
        folder = Path(temporary)
        server = RunningRedis(SERVERS[-1], folder / "redis", more="appendonly no\n")
        running.callback(server.end)
        log = Log(server)
        if kafka:
            brokers: Any = KafkaServer(folder / "kafka", quick=False)
            brokers.start()
            running.callback(brokers.kill)
            log = KafkaLog(server, brokers.address)
        into: Into = IntoKafka(brokers.address, log.topic) if kafka else IntoRedis(log, workers)
        writer = multiprocessing.get_context("spawn").Process(target=write, args=(into, workers, seconds))
        running.callback(writer.join)
        running.callback(writer.terminate)
        if kills:
            _kill(log, folder, master, writer, seconds, kills)
        else:
            _run(log, folder, master, writer)
        _compare(log, folder, workers, seconds)


def _run(log: Log, folder: Path, master: str, writer: BaseProcess) -> None:
    """Run the job in this process while *writer* writes."""
    checkpoint, history = folder / "checkpoint", folder / "history"
    settings = Settings(
        url=log.url, prefix=log.prefix, checkpoint=checkpoint, history=history, kafka=log.kafka, topic=log.topic
    )
    job = Job(settings, session(master, jars() if log.kafka is not None else ()))
    running = threading.Thread(target=job.run)
    running.start()
    try:
        _begin(log, writer, lambda: job._status)
        _watch(writer, lambda: job._status, lambda: _state_rows(job))
        _settle(lambda: job._status)
    finally:
        job.stop()
        running.join()


def _kill(log: Log, folder: Path, master: str, writer: BaseProcess, seconds: int, kills: int) -> None:
    """Run the job in a process that is killed *kills* times in the *seconds* in which *writer* writes."""
    jobs = [InProcess(log, folder, LIMIT, master, trigger=1.0)]
    ended = threading.Event()

    def killing() -> None:
        for _ in range(kills):
            if ended.wait(seconds / (kills + 1)):
                return
            jobs[-1].kill()
            print("The job was killed.", flush=True)
            jobs.append(InProcess(log, folder, LIMIT, master, trigger=1.0))

    killer = threading.Thread(target=killing)
    try:
        _begin(log, writer, log.status)
        killer.start()
        _watch(writer, log.status, lambda: 0)
        killer.join()
        _settle(log.status)
    finally:
        ended.set()
        if killer.ident is not None:
            killer.join()
        jobs[-1].terminate()


def _begin(log: Log, writer: BaseProcess, status: Callable[[], Status | None]) -> None:
    """Start *writer*. Spark has started by then: the first batch is not of what came in meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while status() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    writer.start()


def _settle(status: Callable[[], Status | None]) -> None:
    """Wait until no more records come: LATEST after the last second, or PATIENCE if the job does not get there."""
    quiet, ended = time.monotonic(), time.time()
    last = None
    while time.monotonic() < quiet + (LATEST if last is not None and last > ended - 3 else PATIENCE):
        told = status()
        if told is not None and told["newest"] != last:
            last, quiet = told["newest"], time.monotonic()
        time.sleep(0.1)


def _compare(log: Log, folder: Path, workers: int, seconds: int) -> None:
    """Print how often the records count that were written."""
    counted: Counter[tuple[str, int]] = Counter()
    for file in (folder / "history").rglob("*.parquet"):
        table = pyarrow.parquet.ParquetFile(file).read(columns=["boot", "sequence"])
        counted.update(zip(table.column("boot").to_pylist(), table.column("sequence").to_pylist(), strict=True))
    written = {(f"boot-{worker}", second) for worker in range(workers) for second in range(seconds)}
    doubled = sum(count > 1 for count in counted.values())
    messages = sum(window["cluster"]["messages_in"] for window in log.windows(60).values())
    status = log.status()
    missed = (status["late"], status["lost"]) if status is not None else (0, 0)
    print(
        f"Of {len(written)} records {len(written & {*counted})} are in the history, {doubled} of them twice, and "
        f"{len({*counted} - written)} others; windows have {messages} of {MESSAGES * len(written)} messages; "
        f"late {missed[0]}, lost {missed[1]}."
    )


def _watch(writer: BaseProcess, told: Callable[[], Status | None], state_rows: Callable[[], int]) -> None:
    """A line each EVERY seconds while *writer* writes, and one for all of it."""
    print(f"{'s':>5} {'records/s':>9} {'batches':>7} {'delay, s':>8} {'batch, s':>8} {'state rows':>10} {'lost':>6}")
    began = time.monotonic()
    seen: dict[int, Status] = {}
    printed = began
    counted = 0
    while writer.is_alive():
        writer.join(0.1)
        status = told()
        if status is not None and status["batch"] >= 0 and status["newest"]:
            seen[status["batch"]] = status
        if seen and time.monotonic() - printed >= EVERY:
            recent = [one for number, one in seen.items() if number >= counted]
            if not recent:
                continue
            span, printed = time.monotonic() - printed, time.monotonic()
            counted = max(seen) + 1
            print(
                f"{printed - began:5.0f} {sum(one['records'] for one in recent) / span:9.0f} {len(recent):7} "
                f"{max(one['delay_s'] for one in recent):8.2f} {median(one['batch_s'] for one in recent):8.2f} "
                f"{state_rows():10} {recent[-1]['lost']:6}",
                flush=True,
            )
    delays = sorted(one["delay_s"] for one in seen.values())
    if delays:
        print(
            f"Delay: median {median(delays):.2f} s, 99 % {delays[int(0.99 * len(delays))]:.2f} s, "
            f"most {delays[-1]:.2f} s"
        )


def _state_rows(job: Job) -> int:
    progress = None if job._query is None else job._query.lastProgress
    return int(progress["stateOperators"][0]["numRowsTotal"]) if progress and progress["stateOperators"] else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.analysis", description="Measure the analysis.")
    parser.add_argument("--workers", type=int, default=2000, help="that write a record a second (default 2000)")
    parser.add_argument("--seconds", type=int, default=300, help="(default 300)")
    parser.add_argument("--master", default="local[2]", help="of Spark (default local[2])")
    parser.add_argument("--kafka", action="store_true", help="they write to Kafka, and not to Redis")
    parser.add_argument("--kills", type=int, default=0, help="how often the job is killed meanwhile (default: never)")
    given = parser.parse_args()
    measure(given.workers, given.seconds, given.master, given.kafka, given.kills)


if __name__ == "__main__":
    main()
