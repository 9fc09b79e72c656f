# python -m tests.tools.bench.analysis: how far the analysis lags behind so many workers, and what it keeps.
#
# A process writes the records of all workers, spread over each second, into a Redis of its own; the job reads them as
# ever. The delay is from the second of a record to when it can be read in Redis; a record is of the second before.
import argparse
import json
import multiprocessing
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from analytics.job import Job, Settings
from analytics.keys import AnalyticsKeys
from analytics.rows import Status
from analytics.spark import session
from tests.analytics.records import record, top
from tests.redis_servers import SERVERS, RunningRedis

STEPS: Final = 20  # of a second, in which some of the workers write
HITTERS: Final = 25  # clients, and topics, of each record: about 6 KB
NODE: Final = 8  # workers of a node
EVERY: Final = 5.0  # seconds between two lines
HELD_BACK: Final = {"credits": {"clients": 3, "pauses": 5, "ms": 700}}


def write(socket: str, key: str, workers: int, seconds: int) -> None:
    """What *workers* write in so many seconds; each 60 s one of eight nodes is overloaded for 20."""
    import redis

    client = redis.Redis(unix_socket_path=socket)
    bodies = [json.dumps(_record(worker), separators=(",", ":")) for worker in range(workers)]
    began = time.time()
    for step in range(seconds * STEPS):
        ahead = began + step / STEPS - time.time()
        if ahead > 0:
            time.sleep(ahead)
        now, second = time.time(), step // STEPS
        with client.pipeline(transaction=False) as line:
            for worker in range(step % STEPS, workers, STEPS):
                body = (
                    bodies[worker].replace('"ts":0', f'"ts":{now:.3f}').replace('"sequence":0', f'"sequence":{second}')
                )
                if worker // NODE % 8 == 0 and second % 60 >= 40:
                    body = body.replace('"level":0', '"level":6').replace('"cause":""', '"cause":"lag"')
                line.xadd(key, {"record": body}, maxlen=40 * workers, approximate=True)
            line.execute()


def _record(worker: int) -> dict[str, Any]:
    clients = {f"client-{worker}-{number}": 10_000 // (number + 1) for number in range(HITTERS)}
    topics = {f"topic/{number}/{worker % 10}": 10_000 // (number + 1) for number in range(HITTERS)}
    node = f"node{worker // NODE}"
    tops = {"clients": top("client", {f"client-{worker}-20": 700}, **clients), "topics": top("topic", **topics)}
    return record(ts=0, node=node, worker=worker % NODE, boot=f"boot-{worker}", paused=HELD_BACK, top=tops)


def measure(workers: int, seconds: int, master: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        server = RunningRedis(SERVERS[-1], folder / "redis", more="appendonly no\n")
        writer = multiprocessing.get_context("spawn").Process(
            target=write, args=(str(server.socket), AnalyticsKeys("weir").metrics, workers, seconds)
        )
        settings = Settings(
            url=f"unix://{server.socket}", prefix="weir", checkpoint=folder / "checkpoint", history=folder / "history"
        )
        job = Job(settings, session(master))
        running = threading.Thread(target=job.run)
        try:
            writer.start()
            running.start()
            _watch(job, writer)
        finally:
            job.stop()
            running.join()
            writer.terminate()
            writer.join()
            server.end()


def _watch(job: Job, writer: "multiprocessing.process.BaseProcess") -> None:
    """A line each EVERY seconds while *writer* writes, and one for all of it."""
    print(f"{'s':>5} {'records/s':>9} {'batches':>7} {'delay, s':>8} {'batch, s':>8} {'state rows':>10} {'lost':>6}")
    began = time.monotonic()
    seen: dict[int, Status] = {}
    printed = began
    counted = 0
    while writer.is_alive():
        writer.join(0.1)
        status = job._status
        if status is not None and status["batch"] >= 0:
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
                f"{_state_rows(job):10} {recent[-1]['lost']:6}",
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
    given = parser.parse_args()
    measure(given.workers, given.seconds, given.master)


if __name__ == "__main__":
    main()
