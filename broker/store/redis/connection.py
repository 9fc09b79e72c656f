# A line to Redis: one connection, made again whenever it ends, that has been let in before anybody may use it.
#
# A worker never waits for Redis (DESIGN section 2, point 6): bytes come in by `take()`, go out by the wire, and time
# passes by `tick()`. What touches a socket is behind `ByteStream` (net/dialling.py puts it on the reactor), so this is
# the same for unix sockets and TCP. TLS is not here yet: it would be a layer of the reactor, below the wire.
#
# A line is AWAY between two attempts, GREETING until every command of the greeting was answered with success (a
# server that still loads its data, or is stopped, accepts connections as well), then READY. Its attempts are
# FIRST_PAUSE apart, and the pause doubles up to LONGEST_PAUSE: long enough for a server that died under load, short
# enough that all resumes within the two seconds that a client of a lasting session is kept waiting.
from collections.abc import Callable
from typing import Final, Protocol, cast

from hiredis import ProtocolError, Reader, ReplyError, pack_command

from broker.log import Log
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress

AWAY: Final = 0
GREETING: Final = 1
READY: Final = 2

FIRST_PAUSE: Final = 0.05  # seconds
LONGEST_PAUSE: Final = 1.0
GREETING_TIME: Final = 1.0  # seconds for a greeting to be answered
NAP: Final = 0.25  # seconds between two looks over which it is we who were away: what has come is to be read first
SILENCE: Final = 3.0  # seconds without a byte, while we wait for one, after which the connection is taken for dead
REPLY: Final = 10  # units of the reactor's quantum: what mostly follows from a reply is as much as a small publish

NOTHING: Final = object()  # what the reader says when it has no whole reply

# The words that an error of Redis begins with, as far as they tell us what to do.
CODES: Final = {
    "LOADING": StoreFailure.LOADING,
    "MASTERDOWN": StoreFailure.READ_ONLY,
    "BUSY": StoreFailure.SCRIPT_BUSY,
    "READONLY": StoreFailure.READ_ONLY,
    "MOVED": StoreFailure.MOVED,
    "CLUSTERDOWN": StoreFailure.MOVED,
    "NOAUTH": StoreFailure.AUTHENTICATION_FAILED,
    "WRONGPASS": StoreFailure.AUTHENTICATION_FAILED,
    "NOPERM": StoreFailure.FORBIDDEN,
    "OOM": StoreFailure.MEMORY_FULL,
    "MISCONF": StoreFailure.CANNOT_WRITE,
    "NOSCRIPT": StoreFailure.SCRIPT_UNKNOWN,
}
# After these nothing on this connection will be better: it is made again, perhaps to where the supervisor has found
# another server meanwhile.
HOPELESS: Final = (StoreFailure.READ_ONLY, StoreFailure.AUTHENTICATION_FAILED)


_pack: Final = cast(
    "Callable[[tuple[str | bytes | int, ...]], bytes]", pack_command
)  # its stub knows single words only


def packed(*words: str | bytes | int) -> bytes:
    """The command of *words* as it is sent."""
    return _pack(words)


class ByteStream(Protocol):
    """What a line is spoken over. It never waits, and calls nothing of the line's from within these."""

    def open(self, address: RedisAddress, line: "RedisConnection") -> str:
        """Begin to connect; "" or why it is not possible. A connection that fails later is told by `line.lost()`."""
        ...

    def write(self, data: bytes) -> None:
        """Send *data* at the end of the tick."""
        ...

    def close(self) -> None:
        """End the connection without a word; nothing more comes from it."""
        ...


class RedisConnection:
    def __init__(self, wire: ByteStream, address: RedisAddress, name: str, log: Log) -> None:
        """*name* is what `CLIENT LIST` of the server shows for it."""
        self.state = AWAY
        self.more = False  # `take()` may have replies left that it did not get to: call it again, without data
        self.away_since = 0.0  # when it was last READY, while it is not
        self.connected = 0  # times that it became READY
        self._wire = wire
        self._log = log
        self._name = name
        self._address = address
        self._reader = Reader(notEnoughData=NOTHING)
        self._greetings = 0  # commands of the greeting that are not answered yet
        self._pause = FIRST_PAUSE
        self._next = 0.0  # when to try again, or to give up greeting
        self._heard = 0.0  # when the server last said something, or began to owe us an answer
        self._told: StoreFailure | None = None  # what the log knows of this outage
        self._stopped = False
        self.awake = True  # false after a stop of this process, or a long turn: nothing is late before another look
        self._looked = 0.0

    def start(self, now: float) -> None:
        """Connect, and stay connected."""
        self._looked = now
        self.away_since = now
        self._dial(now)

    def stop(self, now: float) -> None:
        """End the connection for good."""
        self._stopped = True
        if self.state != AWAY:
            self._break(StoreFailure.LOST, "stopped", now)
        self._next = float("inf")

    def move(self, address: RedisAddress, now: float) -> None:
        """Redis is somewhere else from now on."""
        self._address = address
        if self.state != AWAY:
            self._break(StoreFailure.LOST, "moved", now)
        self._pause = FIRST_PAUSE
        self._next = now

    def tick(self, now: float) -> float:
        """Do what is due; when the next thing will be."""
        self.awake = now - self._looked <= NAP
        self._looked = now
        if self.state == READY:
            if not self._owed():
                return float("inf")
            late = self._heard + SILENCE
            if now >= late:
                if not self.awake:
                    return now
                self._break(StoreFailure.TIMEOUT, f"silent for {SILENCE:g} s", now)
                return self._next
            return late
        if now >= self._next and not self._stopped:
            if self.state == GREETING:
                self._break(StoreFailure.TIMEOUT, "the greeting was not answered", now)
            else:
                self._dial(now)
        return self._next

    def take(self, data: bytes, quantum: int, now: float) -> int:
        """The server sent *data*: act on replies for about *quantum* units; the units used."""
        reader = self._reader
        self._heard = now
        if data:
            reader.feed(data)
        self.more = True  # also when what follows from a reply fails
        units = 0
        while units < quantum:
            try:
                reply = reader.gets()
            except ProtocolError as error:
                self._break(StoreFailure.MALFORMED_REPLY, str(error), now)
                return units
            if reply is NOTHING:
                self.more = False
                return units
            if self.state == READY:
                units += self._replied(reply, now)
            else:
                units += REPLY
                self._greeted(reply, now)
            if self._reader is not reader:  # what it said has ended the connection
                return units
        return units

    def lost(self, why: str, now: float) -> None:
        """The connection has ended, or could not be made."""
        if self.state != AWAY:
            self._break(StoreFailure.UNREACHABLE if self.state == GREETING else StoreFailure.LOST, why, now)

    # For what speaks on a line.

    def _replied(self, reply: object, now: float) -> int:
        """The next reply in order, an error of the server is a ReplyError; the units that what follows from it used."""
        raise NotImplementedError

    def _ready(self, now: float) -> None:
        """The line can be used."""
        raise NotImplementedError

    def _broken(self, failure: StoreFailure, now: float) -> None:
        """What was under way on the line is lost."""
        raise NotImplementedError

    def _owed(self) -> bool:
        """Whether the server has something to answer."""
        raise NotImplementedError

    def _dial(self, now: float) -> None:
        self._reader = Reader(notEnoughData=NOTHING)
        self.more = False
        self.state = GREETING
        self._next = now + GREETING_TIME
        failure = self._wire.open(self._address, self)
        if failure:
            self._break(StoreFailure.UNREACHABLE, failure, now)
            return
        greeting = self._greeting()
        self._greetings = len(greeting)
        self._wire.write(b"".join(greeting))

    def _greeting(self) -> list[bytes]:
        """What has to succeed before anything else is said, PING last: a server that loads refuses that."""
        address = self._address
        commands: list[bytes] = []
        if address.user:
            commands.append(packed("AUTH", address.user, address.password))
        elif address.password:
            commands.append(packed("AUTH", address.password))
        if address.db:
            commands.append(packed("SELECT", address.db))
        commands.append(packed("CLIENT", "SETNAME", self._name))
        commands.append(packed("PING"))
        return commands

    def _greeted(self, reply: object, now: float) -> None:
        if isinstance(reply, ReplyError):
            self._break(failure_of(reply), str(reply), now)
            return
        self._greetings -= 1
        if self._greetings == 0:
            self.state = READY
            self.connected += 1
            self._pause = FIRST_PAUSE
            if self._told is not None or self.connected == 1:
                self._log.info("redis_connected", address=str(self._address), connection=self._name)
            self._told = None
            self._ready(now)

    def _break(self, failure: StoreFailure, detail: str, now: float) -> None:
        """End the connection, if there is one, and try again after a pause."""
        if self.state == READY:
            self.away_since = now
        self._wire.close()
        self._reader = Reader(notEnoughData=NOTHING)  # a reply that was cut short ends with its connection
        self.more = False
        self.state = AWAY
        self._next = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if failure is not self._told and not self._stopped:
            self._told = failure
            facts: dict[str, object] = {"reason": failure.label, "address": str(self._address)}
            self._log.warning("redis_unavailable", why=failure.words, detail=detail, connection=self._name, **facts)
        self._broken(failure, now)


def failure_of(error: ReplyError) -> StoreFailure:
    """What an error of the server means. Redis 6.2 hides the code of an error in a script in its text."""
    text = str(error)
    code = text.split(" ", 1)[0]
    if code in CODES:
        return CODES[code]
    for word, failure in CODES.items():
        if f"-{word} " in text:
            return failure
    return StoreFailure.REFUSED
