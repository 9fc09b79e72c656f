# Commands to Redis: pipelined within a tick, answered in the order in which they were sent.
#
# A command is an object whose `replied()` or `failed()` is called; nothing waits. Each command has a timeout, after
# which it has failed for its caller; if the reply comes after that, `replied_late()` is called, as the server has
# carried the command out. A command that is submitted while the connection is not READY waits for it, until its timeout
# at most. If the connection ends before the reply, nobody knows what the server did: the command fails as LOST, and is
# not sent again from here.
#
# A busy worker may have a reply for longer than the server took to make it. So nothing times out before all that has
# come is handled. Otherwise the answers of a server that is quick enough would be thrown away, and asking again would
# make the worker busier still, until no answer comes in time.
#
# At most MOST commands of MOST_BYTES bytes have no reply; beyond that a command fails as BACKLOG_FULL at once. A single
# command of any size passes if nothing else waits.
#
# tests/tools/bench/redis_cost.py measures what a command costs (redis-py: 8 us; see broker/DESIGN.md).
from collections import deque
from collections.abc import Callable
from typing import Final

from hiredis import ReplyError

from broker.log import Log
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY, RECONNECT_AFTER, REPLY, ByteStream, RedisConnection, failure_of

MOST: Final = 20_000  # commands; at 1.8 us each and 300 ms of patience more could not be answered in time
MOST_BYTES: Final = 16 * 1024 * 1024
WRONG_TYPE: Final = "WRONGTYPE"  # how the error of the server begins for a key of another type


class Command:
    """One command. Exactly one of `replied` and `failed` is called."""

    def __init__(self, packed: bytes, patience: float) -> None:
        """*packed* by hiredis; *patience*: the timeout in seconds, of which there should be few different values."""
        self.packed = packed
        self.size = len(packed)
        self.patience = patience
        self.deadline = 0.0
        self.done = False  # `replied` or `failed` has been called
        self.units = REPLY  # of the reactor's quantum, that handling the reply costs
        self.replies_left = 1  # a transaction has one for each of its commands; the last one, of EXEC, counts
        self.error: ReplyError | None = None  # the first one within a transaction, which says more than that of EXEC

    def replied(self, reply: object, now: float) -> None:
        """The server has carried the command out."""
        raise NotImplementedError

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        """*failure* says whether the server refused the command, did not answer in time, or may have carried it out.

        *detail*: the server's own words.
        """
        raise NotImplementedError

    def replied_late(self, reply: object, now: float) -> None:
        """After `failed(TIMEOUT)`: the server has carried the command out nevertheless."""


class CallbackCommand(Command):
    """A command that calls *then*, with (the reply, None) or with (None, the failure)."""

    def __init__(self, packed: bytes, patience: float, then: Callable[[object, StoreFailure | None], None]) -> None:
        super().__init__(packed, patience)
        self._then = then

    def replied(self, reply: object, now: float) -> None:
        self._then(reply, None)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._then(None, failure)


class CommandStatistics:
    def __init__(self) -> None:
        self.sent = 0
        self.waiting = 0  # for a reply, or to be sent
        self.failures: dict[StoreFailure, int] = {}


class OnReady:
    def redis_ready(self, now: float) -> None:
        """The connection has become READY: submit what has to be sent before all commands that wait."""
        raise NotImplementedError


class CommandPipeline(RedisConnection):
    def __init__(
        self,
        wire: ByteStream,
        address: RedisAddress,
        name: str,
        log: Log,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
        ends_former: bool = False,
    ) -> None:
        super().__init__(wire, address, name, log, ends_former)
        self.statistics = CommandStatistics()
        self._on_ready: OnReady | None = None
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._sent: deque[Command] = deque()  # in the order of their replies
        self._unsent: deque[Command] = deque()
        self._by_patience: dict[float, deque[Command]] = {}  # each in the order of its deadlines

    def on_ready(self, listener: OnReady) -> None:
        """Call *listener* each time that the connection becomes READY. To be called once, before `start()`."""
        assert self._on_ready is None
        self._on_ready = listener

    def submit(self, command: Command, now: float) -> None:
        """Send *command*; it may fail before this returns."""
        statistics = self.statistics
        if statistics.waiting >= self._most or (self._bytes and self._bytes + command.size > self._most_bytes):
            self._fail(command, StoreFailure.BACKLOG_FULL, "", now)
            return
        statistics.waiting += 1
        self._bytes += command.size
        command.deadline = now + command.patience
        waiting = self._by_patience.get(command.patience)
        if waiting is None:
            waiting = self._by_patience[command.patience] = deque()
        waiting.append(command)
        if self.state == READY:
            self._send(command, now)
        else:
            self._unsent.append(command)

    def unresponsive_for(self, now: float) -> float:
        """Seconds for which Redis has not answered although a reply is expected; 0.0: it answers."""
        if self.state == READY:
            return now - self._last_reply if self._sent and not self._lags() else 0.0
        return now - self.down_since

    def tick(self, now: float) -> float:
        due = super().tick(now)
        if self.statistics.waiting and (not self.on_time or self._lags()):
            return min(due, now)
        for waiting in [
            *self._by_patience.values()
        ]:  # a command that fails may submit another one, with another timeout
            while waiting and (waiting[0].done or waiting[0].deadline <= now):
                command = waiting.popleft()
                if not command.done:
                    self._fail(command, StoreFailure.TIMEOUT, "", now)
            if waiting and waiting[0].deadline < due:
                due = waiting[0].deadline
        while self._unsent and self._unsent[0].done:
            self._forget(self._unsent.popleft())
        return due

    def _send(self, command: Command, now: float) -> None:
        if not self._sent:
            self._last_reply = now
        self.statistics.sent += 1
        self._sent.append(command)
        self._wire.write(command.packed)
        command.packed = b""

    def _replied(self, reply: object, now: float) -> int:
        if not self._sent:
            self._disconnect(StoreFailure.MALFORMED_REPLY, "a reply without a command", now)
            return REPLY
        command = self._sent[0]
        if command.replies_left > 1:
            command.replies_left -= 1
            if isinstance(reply, ReplyError) and command.error is None:
                command.error = reply
            return 1
        self._sent.popleft()
        self._forget(command)
        if isinstance(reply, ReplyError):
            reply = command.error or reply
            failure = failure_of(reply)
            if not command.done:
                self._fail(command, failure, str(reply), now)
            if failure in RECONNECT_AFTER and self.state == READY:
                self._disconnect(failure, str(reply), now)
        elif command.done:
            command.replied_late(reply, now)
            return REPLY
        else:
            command.done = True
            command.replied(reply, now)
        return command.units

    def _ready(self, now: float) -> None:
        if self._on_ready is not None:
            self._on_ready.redis_ready(now)
        unsent, self._unsent = self._unsent, deque()
        for command in unsent:
            if command.done:
                self._forget(command)
            elif self.state == READY:
                self._send(command, now)
            else:
                self._unsent.append(command)

    def _disconnected(self, failure: StoreFailure, now: float) -> None:
        sent, self._sent = self._sent, deque()
        for command in sent:
            self._forget(command)
            if not command.done:
                self._fail(command, StoreFailure.LOST, failure.words, now)

    def _expects_reply(self) -> bool:
        return len(self._sent) > 0

    def _forget(self, command: Command) -> None:
        self.statistics.waiting -= 1
        self._bytes -= command.size

    def _fail(self, command: Command, failure: StoreFailure, detail: str, now: float) -> None:
        failures = self.statistics.failures
        failures[failure] = failures.get(failure, 0) + 1
        command.done = True
        command.failed(failure, detail, now)
