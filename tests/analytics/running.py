# A log that tests write, and jobs that analyse it: in this process, or as a process that can be killed.
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from analytics.connecting import URL
from analytics.connector import ADDRESS, KafkaAddress
from analytics.keys import AnalyticsKeys
from analytics.rows import Episode, Status, Window
from broker.metrics.record import LOG
from tests.analytics.records import BEGAN, record, top
from tests.kafka_servers import topic_name
from tests.redis_servers import RunningRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE: Final = 240.0  # seconds for what takes five on a machine with nothing else to do
LAST_LINES: Final = 20
LOOK: Final = 0.05  # seconds; Redis tells nobody that the job wrote

Record = dict[str, Any]


class Log:
    """The log of a prefix, and what is said of it."""

    def __init__(self, server: RunningRedis, prefix: str = "weir") -> None:
        self.url = f"unix://{server.socket}"
        self.prefix = prefix
        self.keys = AnalyticsKeys(prefix)
        self.kafka: KafkaAddress | None = None
        self.topic = LOG
        self._server = server
        self._at = BEGAN * 1000  # of the last entry, in milliseconds

    def add(self, records: Iterable[Record | str | bytes]) -> None:
        """Entries, taken in at the time of the record, but never before another one."""
        with self._server.client() as client, client.pipeline() as line:
            for at, body in self.timed(records):
                line.execute_command("XADD", self.keys.metrics, f"{at}-*", "record", body)
            line.execute()

    def timed(self, records: Iterable[Record | str | bytes]) -> Iterator[tuple[int, str | bytes]]:
        """When each of *records* is to be taken in, in milliseconds, and its body."""
        for one in records:
            if isinstance(one, dict):
                self._at = max(self._at, int(one["ts"] * 1000))
            yield self._at, json.dumps(one) if isinstance(one, dict) else one

    def status(self) -> Status | None:
        with self._server.client() as client:
            found = cast(bytes | None, client.get(self.keys.status))
        return None if found is None else json.loads(found)

    def windows(self, span: int = 1) -> dict[int, Window]:
        with self._server.client() as client:
            found = cast(dict[bytes, bytes], client.hgetall(self.keys.windows(span)))
        return {int(start): json.loads(one) for start, one in sorted(found.items())}

    def episodes(self) -> dict[str, Episode]:
        with self._server.client() as client:
            found = cast(dict[bytes, bytes], client.hgetall(self.keys.episodes))
        return {id.decode(): json.loads(one) for id, one in sorted(found.items())}

    def unfit(self) -> list[dict[str, str]]:
        with self._server.client() as client:
            found = cast(list[Any], client.xrange(self.keys.unfit))
        return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in found]

    def all_of_it(self) -> dict[str, object]:
        """What is said, but how the job is."""
        with self._server.client() as client:
            findings = cast(bytes, client.get(self.keys.findings))
        spans = {f"{span}": self.windows(span) for span in (1, 10, 60)}
        return {**spans, "episodes": self.episodes(), "findings": json.loads(findings), "unfit": self.unfit()}

    def reaches(self, newest: int) -> None:
        """Wait until the job knows of the second *newest*."""
        wait_for(lambda: (self.status() or {"newest": 0})["newest"] >= newest, lambda: str(self.status()))


class KafkaLog(Log):
    """The log in a topic of its own of the Kafka at *address*. What is said of it is in Redis."""

    def __init__(self, server: RunningRedis, address: str, *, made: bool = True) -> None:
        super().__init__(server)
        self.kafka = KafkaAddress(hosts=(address,))
        self.topic = topic_name()
        self.sent = 0
        if made:
            self.make()

    def make(self) -> None:
        """Make the topic."""
        from kafka import KafkaAdminClient

        assert self.kafka is not None
        # Its times are those of the test, which are years ago.
        configs = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        with KafkaAdminClient(bootstrap_servers=[*self.kafka.hosts]) as admin:
            admin.create_topics({self.topic: {"num_partitions": 1, "configs": configs}})

    def add(self, records: Iterable[Record | str | bytes]) -> None:
        from kafka import KafkaProducer

        assert self.kafka is not None
        with KafkaProducer(bootstrap_servers=[*self.kafka.hosts], metrics_enabled=False) as producer:
            for at, body in self.timed(records):
                value = body if isinstance(body, bytes) else body.encode()
                producer.send(self.topic, key=b"a/0", value=value, partition=0, timestamp_ms=at)
                self.sent += 1
            producer.flush(PATIENCE)

    def delete_before(self, offset: int) -> None:
        """Delete the first records, as retention would."""
        from kafka import KafkaAdminClient, TopicPartition

        assert self.kafka is not None
        with KafkaAdminClient(bootstrap_servers=[*self.kafka.hosts]) as admin:
            admin.delete_records({TopicPartition(self.topic, 0): offset})


def wait_for(so: Callable[[], bool], told: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < deadline, told()
        time.sleep(LOOK)


def story(seconds: int, workers: int = 2, first: int = 0) -> list[Record]:
    """What *workers* wrote in so many seconds: of each 60 the third ten are an overload, by the client `pump`."""
    made = []
    for second in range(first, first + seconds):
        hot = 20 <= second % 60 < 30
        for worker in range(workers):
            made.append(
                record(
                    ts=BEGAN + second + 0.9 + worker / 100,
                    worker=worker,
                    boot=f"b{worker}",
                    sequence=second,
                    level=6 if hot else 0,
                    cluster_level=6 if hot else 0,
                    cause="lag" if hot else "",
                    signals={"lag": 3.0 if hot else 0.1},
                    paused={"credits": {"clients": 1, "pauses": 1, "ms": 900}} if hot else {},
                    top={"clients": top("client", pump=900 if hot else 10, modest=5), "topics": top("topic", t=9)},
                )
            )
    return made


class InThread:
    """A job in this process, on its Spark; leaving the block ends it."""

    def __init__(self, spark: "SparkSession", log: Log, folder: Path, limit: int = 1000) -> None:
        from analytics.job import Job, Settings

        settings = Settings(
            url=log.url,
            prefix=log.prefix,
            checkpoint=folder / "checkpoint",
            history=folder / "history",
            kafka=log.kafka,
            topic=log.topic,
            limit=limit,
            trigger=0.2,
        )
        self.job = Job(settings, spark)
        self.ended: list[str] = []
        self._thread = threading.Thread(target=lambda: self.ended.append(self.job.run()))

    def __enter__(self) -> "InThread":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.job.stop()
        self._thread.join(PATIENCE)
        assert [""] == self.ended

    def progress(self) -> list[dict[str, Any]]:
        """What Spark tells of the batches that had entries."""
        query = self.job._query
        assert query is not None
        return [json.loads(one.json) for one in query.recentProgress if one.numInputRows]


class InProcess:
    """A job as `weir analytics run` starts it."""

    def __init__(self, log: Log, folder: Path, limit: int, master: str = "local[1]", trigger: float = 0.2) -> None:
        command = [sys.executable, "-m", "analytics.job", "--prefix", log.prefix, "--limit", str(limit)]
        command += ["--checkpoint", str(folder / "checkpoint"), "--history", str(folder / "history")]
        command += ["--master", master, "--trigger", f"{trigger:g}", "--topic", log.topic]
        environment = {**os.environ, URL: log.url}
        if log.kafka is not None:
            environment[ADDRESS] = log.kafka.encode()
        self._errors = folder / "errors"  # of all that ran in this folder
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(command, env=environment, stderr=errors)

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def terminate(self) -> int:
        self.process.terminate()
        return self._end()

    def _end(self) -> int:
        return self.process.wait(PATIENCE)

    def last_lines(self) -> str:
        """The end of what it has written to stderr."""
        return "\n".join(self._errors.read_text(errors="replace").splitlines()[-LAST_LINES:])
