# What a message costs that goes through the carrier to the log and back: python -m tests.tools.bench.carrier_cost
#
# One worker appends packs of 200 messages of 100 bytes over its link, and reads them again, with the log in Redis
# (appendfsync no). Printed are messages a second, and microseconds of CPU a message of the worker, the carrier and
# Redis. Then the delay of single packs at a constant rate: until they are stored, and until they are read. Last, what
# readings of as many topics cost that wait for records.
import argparse
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.carrier.processes import RunningWorker, Stage
from tests.redis_servers import SERVERS, RunningRedis
from tests.tools.bench.log_cost import cpu

MESSAGE: Final = 100  # bytes
IN_PACK: Final = 200
PARTITIONS: Final = (1, 10)
IDLE: Final = 10.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="What a message costs that goes through the carrier and back.")
    parser.add_argument("--packs", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=100, help="packs under way")
    parser.add_argument("--rate", type=int, default=1000, help="single packs a second")
    parser.add_argument("--idle", type=int, default=1000, help="readings that wait")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        redis = RunningRedis(SERVERS[-1], Path(folder), "appendfsync no\n")
        stage = Stage(redis.address)
        processes = {"worker": 0, "carrier": stage.carrier.process.pid, "Redis": redis.process.pid}
        for partitions in PARTITIONS:
            worker = stage.start_worker()
            processes["worker"] = worker.process.pid
            topic = f"flood-{partitions}"
            begin(stage, worker, topic, partitions)
            before = {name: cpu(pid) for name, pid in processes.items()}
            began = time.monotonic()
            worker.write(topic, options.packs, partitions, window=options.window, size=MESSAGE * IN_PACK, quiet=True)
            stage.until(lambda worker=worker: worker.written)  # type: ignore[misc]
            until_read(stage, worker, options.packs)
            seconds = time.monotonic() - began
            messages = options.packs * IN_PACK
            costs = [(name, 1e6 * (cpu(pid) - before[name]) / messages) for name, pid in processes.items()]
            each = ", ".join(f"{name} {cost:.2f}" for name, cost in costs)
            print(
                f"{partitions:2} partitions: {messages / seconds:9,.0f} messages a second; us of CPU a message: {each}"
            )
            worker.kill()
            stage.workers.remove(worker)
        for in_pack in (1, IN_PACK):
            worker = stage.start_worker()
            topic = f"single-{in_pack}"
            begin(stage, worker, topic, 1)
            count = 5 * options.rate
            worker.write(topic, count, window=count, size=MESSAGE * in_pack, rate=options.rate, quiet=True)
            stage.until(lambda worker=worker: worker.written)  # type: ignore[misc]
            delays = until_read(stage, worker, count)
            stored, read = shares(worker.written[0]), shares(delays)
            print(f"{options.rate} packs of {in_pack} a second: stored after {stored}, read after {read}")
        worker = stage.start_worker()
        processes["worker"] = worker.process.pid
        for number in range(options.idle):
            begin(stage, worker, f"idle-{number}", 1)
        time.sleep(IDLE / 5)  # until the readings have found that there is nothing
        before = {name: cpu(pid) for name, pid in processes.items()}
        began = time.monotonic()
        time.sleep(IDLE)
        seconds = time.monotonic() - began
        each = ", ".join(f"{name} {100 * (cpu(pid) - before[name]) / seconds:.2f} %" for name, pid in processes.items())
        print(f"{options.idle} readings that wait, of a core: {each}")
        stage.close()
        redis.end()


def begin(stage: Stage, worker: RunningWorker, topic: str, partitions: int) -> None:
    stage.create(worker, topic, partitions)
    for partition in range(partitions):
        worker.read(topic, partition, quiet=True)
    stage.count(worker)


def until_read(stage: Stage, worker: RunningWorker, packs: int) -> list[int]:
    """Wait until *packs* have been read; their delays, in microseconds, sorted."""
    while (counted := stage.count(worker)).packs < packs:
        time.sleep(0.01)
    return counted.delays


def shares(delays: list[int]) -> str:
    p50, p99 = (delays[int(share * (len(delays) - 1))] / 1e3 for share in (0.5, 0.99))
    return f"{p50:.2f} ms (p99 {p99:.2f})"


if __name__ == "__main__":
    main()
