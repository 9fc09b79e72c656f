# One consumer of Kafka and the thread that works with it: it reads up to PARTITIONS partitions.
#
# A consumer belongs to one thread, and its poll() waits. So the log leaves orders, which the thread carries out between
# two polls. While nothing comes it rests: Kafka waits with its answer to a fetch, and a partition that is added or
# resumed is in the next fetch only. So each consumer reads the topic WAKE, too: a record that is appended there ends
# its rest.
#
# What poll() returns is given to the log; the thread stops reading while the log has not taken what came by the last
# AHEAD polls, which bounds what is read ahead.
#
# A partition is assigned to a consumer once. Two readings of one partition have two consumers.
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from broker.carrier.inbox import Inbox
from broker.carrier.kafka_admin import WAKE
from broker.carrier.kafka_clients import CONNECT, CONSUMER, made
from broker.carrier.kafka_errors import error_of
from broker.carrier.log import LogError, Partition, Reading
from broker.reasons import LogFailure

PARTITIONS: Final = 500  # of one consumer
POLL: Final = 500  # milliseconds
AHEAD: Final = 4  # polls that the log has not taken
AGAIN: Final = 1.0  # seconds until a connection, or what was forbidden, is tried again
TOLD: Final = (LogFailure.AUTHENTICATION_FAILED, LogFailure.CLIENT_REFUSED, LogFailure.REFUSED)  # to readers
_WAKE: Final = TopicPartition(*WAKE)


class ConsumerThread:
    def __init__(self, options: Mapping[str, Any], inbox: Inbox, wake: Callable[[], None]) -> None:
        """*wake* appends a record to WAKE; it is called in the thread of the log."""
        self.partitions: set[Partition] = set()  # of the readings; for the thread of the log
        self._options = options
        self._inbox = inbox
        self._wake = wake
        self._resting = False  # it polls, or is about to
        self._orders: deque[Callable[[], None]] = deque()
        self._ordered = threading.Event()
        self._room = threading.Semaphore(AHEAD)
        self._stopped = False
        # For the thread only.
        self._consumer: Any = None
        self._readings: dict[TopicPartition, Reading] = {}
        self._paused: set[TopicPartition] = set()
        self._again: dict[TopicPartition, float] = {}  # those that are paused after a failure, until when
        self._thread = threading.Thread(target=self._work, name="kafka-consumer", daemon=True)
        self._thread.start()

    def add(self, reading: Reading) -> None:
        self.partitions.add(reading.partition)
        self._order(partial(self._add, reading, reading.wanted))

    def change(self, reading: Reading) -> None:
        """*reading* was paused, resumed or stopped."""
        if reading.stopped:
            self.partitions.discard(reading.partition)
            self._order(partial(self._remove, reading), False)
        else:
            self._order(partial(self._pause if reading.paused else self._resume, _key(reading)), not reading.paused)

    def stop(self) -> None:
        self._stopped = True
        self._order(lambda: None)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _order(self, order: Callable[[], None], now: bool = True) -> None:
        """Leave *order* for the thread; *now*: it is not to rest before."""
        self._orders.append(order)
        self._ordered.set()
        if now and self._resting:
            self._wake()

    # In the thread.

    def _work(self) -> None:
        while not self._stopped:
            try:
                if self._consumer is None:
                    self._connect()
                self._turn()
            except KafkaError as exception:
                self._close()
                error = error_of(exception)
                if error.failure in TOLD:
                    for reading in self._readings.values():
                        self._inbox.put(partial(_fail, reading, error))
                self._ordered.wait(AGAIN)
        self._close()

    def _connect(self) -> None:
        self._consumer = made(KafkaConsumer, CONSUMER, self._options)
        self._assign()
        self._consumer.seek_to_end(_WAKE)
        for key, reading in self._readings.items():
            self._consumer.seek(key, reading.wanted)  # what the log has not taken yet comes again, and is left out
            self._apply(key)

    def _close(self) -> None:
        """End the consumer: after an error that it does not expect, kafka-python may not come on by itself."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=CONNECT)
            self._consumer = None

    def _turn(self) -> None:
        self._ordered.clear()
        self._resting = True  # before orders are looked for: one that is left from here on wakes us, or is seen
        while self._orders:
            self._orders.popleft()()
        now = time.monotonic()
        for key in [one for one, due in self._again.items() if due <= now]:
            del self._again[key]
            self._apply(key)
        if self._paused.union(self._again).issuperset(self._readings):
            self._ordered.wait(AGAIN)
        elif self._room.acquire(timeout=AGAIN):
            found: list[tuple[Reading, list[tuple[int, bytes]]]] = []
            try:
                found = self._poll()
            finally:
                self._resting = False
                if found:
                    self._inbox.put(partial(self._give, found))
                else:
                    self._room.release()

    def _poll(self) -> list[tuple[Reading, list[tuple[int, bytes]]]]:
        """What Kafka has for the readings. KafkaError: the consumer cannot go on."""
        try:
            found = self._consumer.poll(POLL)
        except OffsetOutOfRangeError as error:
            for key, offset in error.args[0].items():
                if key == _WAKE:
                    self._consumer.seek_to_end(_WAKE)
                else:
                    self._find_offset(key, offset)
        except TopicAuthorizationFailedError as error:
            for key, reading in self._readings.items():
                if key.topic in error.args[0]:
                    self._again[key] = time.monotonic() + AGAIN
                    self._apply(key)
                    self._inbox.put(partial(_fail, reading, error_of(error)))
        else:
            return [
                (self._readings[key], [(record.offset, record.value or b"") for record in records])
                for key, records in found.items()
                if key in self._readings  # the others are of WAKE
            ]
        return []

    def _add(self, reading: Reading, offset: int) -> None:
        key = _key(reading)
        self._readings[key] = reading
        self._assign()
        self._consumer.seek(key, offset)
        self._apply(key)

    def _remove(self, reading: Reading) -> None:
        key = _key(reading)
        del self._readings[key]
        self._paused.discard(key)
        self._again.pop(key, None)
        self._assign()

    def _assign(self) -> None:
        self._consumer.assign([_WAKE, *self._readings])  # keeps the positions of those that stay

    def _pause(self, key: TopicPartition) -> None:
        self._paused.add(key)
        self._apply(key)

    def _resume(self, key: TopicPartition) -> None:
        self._paused.discard(key)
        self._apply(key)

    def _apply(self, key: TopicPartition) -> None:
        if key in self._readings:
            if key in self._paused or key in self._again:
                self._consumer.pause(key)
            else:
                self._consumer.resume(key)

    def _find_offset(self, key: TopicPartition, offset: int) -> None:
        """The log has no record at *offset*: go on with its oldest one."""
        reading = self._readings.get(key)
        if reading is None:
            return
        oldest = self._consumer.beginning_offsets([key])[key]
        self._consumer.seek(key, oldest)
        if oldest < offset:  # otherwise the reading sees it by the next record
            self._inbox.put(partial(_jump, reading, oldest))

    def _give(self, found: list[tuple[Reading, list[tuple[int, bytes]]]]) -> None:
        """Give the readings what was found for them; in the thread of the log."""
        self._room.release()
        for reading, records in found:
            if not reading.stopped:
                reading.take(records)


def _jump(reading: Reading, oldest: int) -> None:
    if not reading.stopped:
        reading.jump(oldest)


def _fail(reading: Reading, error: LogError) -> None:
    if not reading.stopped:
        reading.reader.failed(error)


def _key(reading: Reading) -> TopicPartition:
    return TopicPartition(*reading.partition)
