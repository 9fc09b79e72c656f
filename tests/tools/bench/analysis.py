# python -m tests.tools.bench.analysis: how far the analysis lags behind so many workers, and what it keeps.
#
# A process writes the records of all workers, spread over each second, into a Redis of its own (`--kafka`: into a Kafka
# of its own); the job reads them as ever. The delay is from the second of a record to when it can be read in Redis; a
# record is of the second before. `--kills N`: the job is a process that is killed so often on its way, and goes on. At
# the end the history and the windows are compared with what was written.
import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

import pyarrow.parquet

from analytics.rows import Status
from analytics.source import LIMIT
from tests.analytics.records import record, top
from tests.analytics.running import InProcess, KafkaLog, Log
from tests.kafka_servers import KafkaServer
from tests.redis_servers import SERVERS, RunningRedis
from tests.tools.bench.cost import cpu_seconds

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


class BenchFailed(Exception):
    """The text says why there are no figures."""


class KilledJob:
    """The job, which is killed *kills* times, at least *every* seconds apart.

    A kill waits until the job has finished a batch since it was started: otherwise it would interrupt nothing.
    """

    def __init__(self, log: Log, folder: Path, master: str, kills: int, every: float) -> None:
        self.killed = 0
        self._log = log
        self._kills = kills
        self._every = every
        self._start = partial(InProcess, log, folder, LIMIT, master, trigger=1.0)
        self._job = self._start()
        self._before = time.monotonic()  # when it was killed, or began to have something to do
        self._batch = -1  # the newest one when it was started
        self._cpu = 0.0  # seconds that those used that were killed

    def begin(self) -> None:
        """Wait until it is ready. Raises BenchFailed."""
        deadline = time.monotonic() + PATIENCE
        while self._log.status() is None:
            self.watch()
            if time.monotonic() > deadline:
                raise BenchFailed(f"The job has not started within {PATIENCE:.0f} s:\n{self.last_lines()}")
            time.sleep(0.1)
        self._before = time.monotonic()

    def watch(self) -> None:
        """Raises BenchFailed: it has ended by itself."""
        code = self._job.process.poll()
        if code is not None:
            raise BenchFailed(f"The job ended with code {code}:\n{self.last_lines()}")

    def kill_if_due(self) -> None:
        if self.killed == self._kills or time.monotonic() < self._before + self._every:
            return
        if self._newest_batch() <= self._batch:
            return
        self._cpu = self.cpu()
        self._job.kill()
        self._batch, self._before = self._newest_batch(), time.monotonic()
        self.killed += 1
        self._job = self._start()
        print(f"The job was killed after batch {self._batch}.", flush=True)

    def _newest_batch(self) -> int:
        status = self._log.status()
        return -1 if status is None else status["batch"]

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        return self._cpu + cpu_seconds(self._job.process.pid)

    def last_lines(self) -> str:
        return self._job.last_lines()

    def end(self) -> None:
        self._job.terminate()


def measure(workers: int, seconds: int, master: str, kafka: bool, kills: int) -> bool:
    """Return whether the job has each record once. Raises BenchFailed."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as running:
        folder = Path(temporary)
        server = RunningRedis(SERVERS[-1], folder / "redis", more="appendonly no\n")
        running.callback(server.end)
        log, keeper = Log(server), server.process.pid
        into: Into = IntoRedis(log, workers)
        if kafka:
            brokers: Any = KafkaServer(folder / "kafka", quick=False)
            brokers.start()
            running.callback(brokers.kill)
            log, keeper = KafkaLog(server, brokers.address), brokers.process.pid
            into = IntoKafka(brokers.address, log.topic)
        writer = multiprocessing.get_context("spawn").Process(target=write, args=(into, workers, seconds))
        job = KilledJob(log, folder, master, kills, seconds / (kills + 1))
        running.callback(job.end)
        job.begin()  # or the first batch would be of what came in meanwhile
        writer.start()
        running.callback(writer.join)
        running.callback(writer.terminate)
        took = _watch(log, writer, job, keeper)
        print(f"Written: {workers * seconds / took:.0f} records a second; {workers} were wanted.")
        if writer.exitcode:
            raise BenchFailed(f"The writer ended with code {writer.exitcode}.")
        _settle(log, job)
        complete = _compare(log, folder, workers, seconds) and job.killed == kills
        if not complete:
            print(f"The job was killed {job.killed} times. Its last lines:\n{job.last_lines()}")
        return complete


def _watch(log: Log, writer: BaseProcess, job: KilledJob, keeper: int) -> float:
    """Print a line each EVERY seconds while *writer* writes, and one for all of it. Raises BenchFailed.

    *keeper*: the process that has the log. Returns the seconds that it took.
    """
    print(
        f"{'s':>5} {'records/s':>9} {'batches':>7} {'delay, s':>8} {'batch, s':>8} {'CPU, %: job':>11} {'log':>4} lost"
    )
    began = printed = time.monotonic()
    seen: dict[int, Status] = {}
    counted = 0
    first = cpu = job.cpu(), cpu_seconds(keeper)
    while writer.is_alive():
        writer.join(0.1)
        job.watch()
        job.kill_if_due()
        status = log.status()
        if status is not None and status["batch"] >= 0 and status["newest"]:
            seen[status["batch"]] = status
        if time.monotonic() - printed < EVERY:
            continue
        span, printed = time.monotonic() - printed, time.monotonic()
        cpu, before = (job.cpu(), cpu_seconds(keeper)), cpu
        recent = [one for number, one in seen.items() if number >= counted]
        counted = max(seen, default=-1) + 1
        print(
            f"{printed - began:5.0f} {sum(one['records'] for one in recent) / span:9.0f} {len(recent):7} "
            f"{max((one['delay_s'] for one in recent), default=0.0):8.2f} "
            f"{median([one['batch_s'] for one in recent] or [0.0]):8.2f} "
            f"{100 * (cpu[0] - before[0]) / span:11.0f} {100 * (cpu[1] - before[1]) / span:4.0f} "
            f"{recent[-1]['lost'] if recent else 0:4}",
            flush=True,
        )
    span = time.monotonic() - began
    delays = sorted(one["delay_s"] for one in seen.values()) or [0.0]
    print(
        f"Delay: median {median(delays):.2f} s, 99 % {delays[int(0.99 * len(delays))]:.2f} s, most {delays[-1]:.2f} s. "
        f"CPU of all {span:.0f} s: job {100 * (job.cpu() - first[0]) / span:.0f} %, "
        f"log {100 * (cpu_seconds(keeper) - first[1]) / span:.0f} % of a core."
    )
    return span


def _settle(log: Log, job: KilledJob) -> None:
    """Wait until no more records come: for LATEST after the last second, or PATIENCE before it. Raises BenchFailed."""
    quiet, ended = time.monotonic(), time.time()
    last = 0.0
    while time.monotonic() < quiet + (LATEST if last > ended - 3 else PATIENCE):
        job.watch()
        status = log.status()
        if status is not None and status["newest"] > last:
            last, quiet = status["newest"], time.monotonic()
        time.sleep(0.1)


def _compare(log: Log, folder: Path, workers: int, seconds: int) -> bool:
    """Print how often the records count that were written; return whether each one counts once."""
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
    return written == {*counted} and not doubled and messages == MESSAGES * len(written)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.analysis", description="Measure the analysis.")
    parser.add_argument("--workers", type=int, default=2000, help="that write a record a second (default 2000)")
    parser.add_argument("--seconds", type=int, default=300, help="(default 300)")
    parser.add_argument("--master", default="local[2]", help="of Spark (default local[2])")
    parser.add_argument("--kafka", action="store_true", help="they write to Kafka, and not to Redis")
    parser.add_argument("--kills", type=int, default=0, help="how often the job is killed meanwhile (default: never)")
    given = parser.parse_args()
    try:
        complete = measure(given.workers, given.seconds, given.master, given.kafka, given.kills)
    except BenchFailed as error:
        sys.exit(f"There is no result. {error}")
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
