# Completion: when a publish is acknowledged although some of its receivers are not done with it yet.
#
# A receiver that keeps a message in memory is done when it is offered the message, and nearly all receivers are of
# that kind: a publish without other receivers has no Completion, and its answer (PUBACK or PUBREC) is written at
# once. A receiver that needs time, such as a queue on a disk, another worker that has to confirm, or a fan-out in
# pages, calls `message.hold()` while it is offered the message, and calls `settle()` once on the Completion that it
# gets, when it is done. Whoever delivers a publish returns `message.completion`: None, or the Completion that the
# answer waits for.
#
# MQTT wants the answers of a connection in the order of their publishes [MQTT-4.6.0-2], [MQTT-4.6.0-3]. So an answer
# waits in the AnswerQueue of its connection until its own publish and all before it are done. The queue is made when
# the first answer of a connection has to wait. It is bounded: when it is full, the connection is not read until half of
# the answers have left. A publisher that is told too early may forget a message that is lost afterwards; one that is
# told too late merely waits.
#
# A receiver that needs long, such as a million sessions that have to be read first or a log that takes nothing now,
# says so (`needs_long()`): then the connection is not read until it has that answer. So who causes such work waits for
# it, and nobody else.
from collections import deque
from typing import Protocol

from broker.delivery.outbox import Outbox
from broker.metrics.counters import Counters
from broker.metrics.latency import Latencies


class SourcePause(Protocol):
    """Stops reading from connections that publish, for one reason; a connection is named by its outbox."""

    def pause(self, source: Outbox) -> None: ...

    def resume(self, source: Outbox) -> None:
        """End the pause. Nothing happens if the connection is closed, or not paused for this reason."""
        ...


class CompletionListener:
    def advance(self, now: float) -> None:
        """All receivers of a publish are done with it."""
        raise NotImplementedError

    def needs_long(self, log: bool) -> None:
        """A receiver of a publish needs long, *log*: as a log does. Nothing happens if nobody can be made to wait."""

    def abandoned(self, now: float) -> Outbox | None:
        """A receiver may have lost the publish, so it must never be answered: its publisher publishes it again.

        Returns the outbox of the connection that has to be closed for that, if it is one of this worker.
        """
        raise NotImplementedError


class Completion:
    """The receivers of one publish that are not done with it yet, and the answer that waits for them."""

    def __init__(self) -> None:
        self.pending = 0  # receivers
        self.abandoned = False  # one of them may have lost it: it is never answered
        self.long = False  # one of them needs long
        self.log = False  # as a log takes long
        self.logged = False  # one of them appends it to a log
        self.token = b""  # of a QoS 2 publish that may be sent again after a crash, see store/durable/tokens.py
        self.answer = b""
        self.read_at = 0.0  # when the publish was read
        self.queue: CompletionListener | None = None  # where the answer waits, while receivers are pending

    def needs_long(self, log: bool = False) -> None:
        """A receiver that is pending needs long, *log*: as a log does, and not as it reads sessions."""
        if not self.long and not self.abandoned:
            self.long = True
            self.log = log
            if self.queue is not None:
                self.queue.needs_long(log)

    def settle(self, now: float) -> None:
        """Count one receiver as done; after the last one the answer may leave. ValueError: no receiver is pending."""
        if self.pending == 0:
            raise ValueError("a receiver of a publish was settled twice")
        self.pending -= 1
        queue = self.queue
        if self.pending == 0 and queue is not None:
            self.queue = None
            queue.advance(now)


class AnswerQueue(CompletionListener):
    """The answers of one connection that wait, in the order of their publishes.

    The connection is paused while there are *limit* of them, or one to a publish that a receiver needs long for.
    """

    def __init__(
        self, outbox: Outbox, counters: Counters, latencies: Latencies, limit: int, source_pause: SourcePause
    ) -> None:
        self.count = 0
        self.long = 0  # of them, those to publishes that a receiver needs long for
        self.log = 0  # of these, those for which a log takes long
        self._waiting: deque[Completion] = deque()
        self._outbox = outbox
        self._counters = counters
        self._latencies = latencies
        self._limit = limit
        self._source_pause = source_pause
        self._paused = False

    def add(self, completion: Completion | None, answer: bytes, read_at: float, now: float) -> None:
        """Write *answer* once *completion* and all before it are done. None: its publish is done already."""
        if completion is None:
            completion = Completion()
        completion.answer = answer
        completion.read_at = read_at
        self._waiting.append(completion)
        self.count += 1
        self.long += completion.long
        self.log += completion.log
        if completion.pending:
            completion.queue = self
        else:
            self.advance(now)
        self._pause_if_needed()

    def needs_long(self, log: bool) -> None:
        self.long += 1
        self.log += log
        self._pause_if_needed()

    def _pause_if_needed(self) -> None:
        if (self.count >= self._limit or self.long) and not self._paused:
            self._paused = True
            self._source_pause.pause(self._outbox)

    def abandoned(self, now: float) -> Outbox | None:
        return self._outbox

    def advance(self, now: float) -> None:
        """Write the answers at the head of the queue whose publishes are done."""
        waiting = self._waiting
        while waiting and waiting[0].pending == 0:
            completion = waiting.popleft()
            self.count -= 1
            self.long -= completion.long
            self.log -= completion.log
            self._counters.answers_sent += 1
            self._outbox.answer(completion.answer)
            self._latencies.add(now - completion.read_at, 1)
        if self._paused and self.count <= self._limit >> 1 and not self.long:
            self._paused = False
            self._source_pause.resume(self._outbox)

    def discard(self) -> list[Completion]:
        """Forget all answers, because the connection has ended. Receivers that settle later change nothing.

        Returns what was not answered.
        """
        unanswered = list(self._waiting)
        for completion in unanswered:
            completion.queue = None  # it also ends the reference cycle between them
        self._waiting.clear()
        self.count = self.long = self.log = 0
        return unanswered
