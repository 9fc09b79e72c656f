# Commands to Redis on a line: pipelined within a tick, answered in the order in which they were sent.
#
# Nothing waits: a command is an object that is told its reply, or that there will be none. Each has a patience, after
# which it has failed for whoever waits for it; should its reply still come, it is told that, too, as the server did
# what it was asked. A command that is given while the line is not ready waits for it, no longer than its patience.
# What the server may have done when a connection ended under a command, nobody knows: it fails as LOST, and is not
# sent again from here.
# Bounded: MOST commands and MOST_BYTES that the server has not answered; what comes then fails as BACKLOG_FULL. One
# command of any size always passes if nothing waits, or it never would.
#
# What a command costs is measured by tests/tools/bench/redis_cost.py (redis-py: 8 us, DESIGN section 2).
from collections import deque
from collections.abc import Callable
from typing import Final

from hiredis import ReplyError

from broker.log import Log
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import HOPELESS, READY, REPLY, ByteStream, RedisConnection, failure_of

MOST: Final = 20_000  # commands; at 1.8 us each and 300 ms of patience more could not be answered in time
MOST_BYTES: Final = 16 * 1024 * 1024


class Command:
    """One command, and what its reply means. Exactly one of `replied` and `failed` is called."""

    def __init__(self, packed: bytes, patience: float) -> None:
        """*packed* by hiredis; *patience* in seconds, of which there should be few different ones."""
        self.packed = packed
        self.size = len(packed)
        self.patience = patience
        self.deadline = 0.0
        self.done = False  # it was told how it ended
        self.units = REPLY  # of the reactor's quantum, for what follows from its reply

    def replied(self, reply: object, now: float) -> None:
        """The server did it."""
        raise NotImplementedError

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        """It was not done, or not in time, or nobody knows: see *failure*; *detail*: the server's own words."""
        raise NotImplementedError

    def late(self, reply: object, now: float) -> None:
        """After `failed(TIMEOUT)`: the server did it nevertheless."""


class CallbackCommand(Command):
    """A command whose end is told to a callable: (the reply or None, None or why there is none)."""

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
        self.waiting = 0  # not answered yet, of them and of those that are not sent
        self.failures: dict[StoreFailure, int] = {}


class CommandPipeline(RedisConnection):
    def __init__(
        self,
        wire: ByteStream,
        address: RedisAddress,
        name: str,
        log: Log,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        super().__init__(wire, address, name, log)
        self.statistics = CommandStatistics()
        self.greeter: OnReady | None = None
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._sent: deque[Command] = deque()  # in the order of their replies
        self._unsent: deque[Command] = deque()
        self._by_patience: dict[float, deque[Command]] = {}  # each in the order of its deadlines

    def ask(self, command: Command, now: float) -> None:
        """Have the server do *command*; it may fail before this returns."""
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

    def away(self, now: float) -> float:
        """For how many seconds nothing has been heard of Redis, though it should have been; 0.0: it answers."""
        if self.state == READY:
            return now - self._heard if self._sent else 0.0
        return now - self.away_since

    def tick(self, now: float) -> float:
        due = super().tick(now)
        if not self.awake and self.statistics.waiting:
            return min(due, now)
        for waiting in [*self._by_patience.values()]:  # who fails may ask again, with another patience
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
            self._heard = now
        self.statistics.sent += 1
        self._sent.append(command)
        self._wire.write(command.packed)
        command.packed = b""

    def _replied(self, reply: object, now: float) -> int:
        if not self._sent:
            self._break(StoreFailure.MALFORMED_REPLY, "a reply to nothing", now)
            return REPLY
        command = self._sent.popleft()
        self._forget(command)
        if isinstance(reply, ReplyError):
            failure = failure_of(reply)
            if not command.done:
                self._fail(command, failure, str(reply), now)
            if failure in HOPELESS and self.state == READY:
                self._break(failure, str(reply), now)
        elif command.done:
            command.late(reply, now)
        else:
            command.done = True
            command.replied(reply, now)
        return command.units

    def _ready(self, now: float) -> None:
        if self.greeter is not None:
            self.greeter.redis_ready(now)
        unsent, self._unsent = self._unsent, deque()
        for command in unsent:
            if command.done:
                self._forget(command)
            elif self.state == READY:
                self._send(command, now)
            else:
                self._unsent.append(command)

    def _broken(self, failure: StoreFailure, now: float) -> None:
        sent, self._sent = self._sent, deque()
        for command in sent:
            self._forget(command)
            if not command.done:
                self._fail(command, StoreFailure.LOST, failure.words, now)

    def _owed(self) -> bool:
        return len(self._sent) > 0

    def _forget(self, command: Command) -> None:
        self.statistics.waiting -= 1
        self._bytes -= command.size

    def _fail(self, command: Command, failure: StoreFailure, detail: str, now: float) -> None:
        failures = self.statistics.failures
        failures[failure] = failures.get(failure, 0) + 1
        command.done = True
        command.failed(failure, detail, now)


class OnReady:
    """Who has something to ask before anybody else does, each time that the line is ready again."""

    def redis_ready(self, now: float) -> None:
        raise NotImplementedError
