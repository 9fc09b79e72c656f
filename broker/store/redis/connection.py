# A connection to Redis that is made again whenever it ends, and is used only after a handshake.
#
# A worker never waits for Redis (broker/DESIGN.md): bytes come in by `receive()`, go out by a `ByteStream`, and time
# passes by `tick()`. Only the byte stream touches a socket (net/dialling.py puts it on the reactor), so unix sockets,
# TCP and TLS are the same here.
#
# The states: DISCONNECTED between two attempts; HANDSHAKE until every command of the handshake has succeeded (a server
# that still loads its data, or is stopped, accepts connections as well); READY. The pause between attempts doubles from
# FIRST_PAUSE to LONGEST_PAUSE: long enough for a server that died under load, short enough for a client that waits two
# seconds for its session.
#
# A server that stood still has two connections of a worker when it goes on: the new one, and the former one with what
# had been sent over it, which it may execute after what comes over the new one. Where that matters the server is told
# to end the former one, before the new one is READY (CLIENT KILL). Ids begin anew when a server is started; so it does
# that only if the connection with that id has the name of this one.
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from hiredis import ProtocolError, Reader, ReplyError, pack_command

from broker.log import Log
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress

DISCONNECTED: Final = 0
HANDSHAKE: Final = 1
READY: Final = 2

FIRST_PAUSE: Final = 0.05  # seconds
LONGEST_PAUSE: Final = 1.0
HANDSHAKE_TIMEOUT: Final = 1.0  # seconds
LONG_TURN: Final = 0.25  # seconds between two ticks: after more, replies may wait in the socket, and nothing is late
SILENCE_TIMEOUT: Final = 3.0  # seconds without a byte while a reply is expected, after which the connection is dead
REPLY: Final = 10  # units of the reactor's quantum: handling a reply mostly costs as much as a small publish

# Commands of the handshake.
REQUIRED: Final = 0  # that has to succeed
FORMER: Final = 1  # asks for the former connection
IDENTITY: Final = 2  # asks for the id of this one
KILL: Final = 3  # ends the former one

END: Final = b"\r\n"
PUSH_ONE: Final = b"*3\r\n$5\r\nRPUSH\r\n"
ENDS: Final = 1000
LAST_DIGITS: Final = [b"%03d\r\n" % number for number in range(ENDS)]
NUMBERS: Final = [b"$%d\r\n%d\r\n" % (len(str(number)), number) for number in range(ENDS)]  # as words
LENGTHS: Final = [b"$%d\r\n" % size for size in range(1024)]  # ahead of words of these sizes

NOTHING: Final = object()  # what the reader returns when it has no complete reply

# The first words of errors of Redis that decide what to do.
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
    "NOREPLICAS": StoreFailure.REPLICAS,
    "NOSCRIPT": StoreFailure.SCRIPT_UNKNOWN,
}
# After these failures the connection is made again: perhaps the supervisor has found another server meanwhile.
RECONNECT_AFTER: Final = (StoreFailure.READ_ONLY, StoreFailure.AUTHENTICATION_FAILED)


_pack: Final = cast(
    "Callable[[tuple[str | bytes | int, ...]], bytes]", pack_command
)  # its stub knows single words only


def packed(*words: str | bytes | int) -> bytes:
    """The command *words* in the form in which it is sent."""
    return _pack(words)


def packed_push(key: bytes, values: list[bytes]) -> bytes:
    """RPUSH of *values* to the list *key*, as by `packed()`, in 40 % of the time: each queue needs one in a tick."""
    words = [PUSH_ONE if len(values) == 1 else b"*%d\r\n$5\r\nRPUSH\r\n" % (2 + len(values)), _length(key), key]
    for value in values:
        words += (END, _length(value), value)
    words.append(END)
    return b"".join(words)


def packed_numbers(name: str, key: bytes, numbers: tuple[int, ...]) -> bytes:
    """The command *name* with *key* and *numbers*, all above 0, as by `packed()`, in a fifth of the time if they are
    close together: they differ in their last three digits."""
    words = [b"*%d\r\n$%d\r\n%s\r\n" % (2 + len(numbers), len(name), name.encode()), _length(key), key, END]
    ends: list[bytes] = []
    first = 0  # the number that the next ends are added to
    for number in numbers:
        end = number - first
        if not 0 <= end < ENDS:
            words.append(_with_ends(first, ends))
            end = number % ENDS
            first = number - end
            ends = []
        ends.append(LAST_DIGITS[end] if first else NUMBERS[end])
    words.append(_with_ends(first, ends))
    return b"".join(words)


def _with_ends(first: int, ends: list[bytes]) -> bytes:
    """The words of *first* and each of *ends*: the last digits of numbers, or the whole words if *first* is 0."""
    if not first:
        return b"".join(ends)
    digits = b"%d" % (first // ENDS)
    start = b"$%d\r\n%s" % (len(digits) + 3, digits)
    return start + start.join(ends)


def _length(word: bytes) -> bytes:
    size = len(word)
    return LENGTHS[size] if size < len(LENGTHS) else b"$%d\r\n" % size


class ByteStream(Protocol):
    """What a connection sends over. Its methods never wait, and never call the connection."""

    def open(self, address: RedisAddress, connection: "RedisConnection") -> str:
        """Begin to connect; "" or why that is not possible. A failure after that is reported by `connection.lost()`."""
        ...

    def write(self, data: bytes) -> None:
        """Send *data* at the end of the tick."""
        ...

    def unread(self) -> bool:
        """Whether bytes have come, by the last look at the socket, that wait to be received or to be handled."""
        ...

    def close(self) -> None:
        """Close the socket; nothing more is received from it."""
        ...


class RedisConnection:
    def __init__(self, wire: ByteStream, address: RedisAddress, name: str, log: Log, ends_former: bool = False) -> None:
        """*name*: of the connection in `CLIENT LIST` of the server.

        *ends_former*: nothing that was sent over a former connection is executed once this one is READY.
        """
        self.state = DISCONNECTED
        self.more_replies = False  # `receive()` stopped at its quantum: call it again, without data
        self.down_since = 0.0  # when it was last READY, if it is not READY now
        self.times_ready = 0  # how often it has become READY
        self._wire = wire
        self._log = log
        self._name = name
        self._address = address
        self._reader = Reader(notEnoughData=NOTHING)
        self._handshake_left: deque[int] = deque()  # commands of the handshake that are not answered yet
        self._ends_former = ends_former
        self._id = 0  # that the server has given this connection
        self._former_id = 0  # that of the last one that was READY, and may be there still
        self._cannot_end = False  # the log says that the server does not end connections
        self._pause = FIRST_PAUSE
        self._next = 0.0  # when the next attempt begins, or the handshake times out
        self._last_reply = 0.0  # when bytes were last received, or a reply began to be expected
        self._logged: StoreFailure | None = None  # the failure of this outage that the log has
        self._stopped = False
        self.on_time = True  # false after a tick that came late: nothing times out before the next one
        self._last_tick = 0.0

    def start(self, now: float) -> None:
        """Connect, and connect again whenever the connection ends."""
        self._last_tick = now
        self.down_since = now
        self._dial(now)

    def stop(self, now: float) -> None:
        """Close the connection; it is not made again."""
        self._stopped = True
        if self.state != DISCONNECTED:
            self._disconnect(StoreFailure.LOST, "stopped", now)
        self._next = float("inf")

    def move(self, address: RedisAddress, now: float) -> None:
        """Redis is at *address* from now on. A connection stays if only its credentials are others now."""
        stays = self.state == READY and address.differs_in_credentials(self._address)
        self._address = address
        if stays:  # the server has accepted those that it was made with
            return
        if self.state != DISCONNECTED:
            self._disconnect(StoreFailure.LOST, "moved", now)
        self._pause = FIRST_PAUSE
        self._next = now

    def tick(self, now: float) -> float:
        """Do what is due; return the time of the next thing that will be."""
        self.on_time = now - self._last_tick <= LONG_TURN
        self._last_tick = now
        if self.state == READY:
            if not self._expects_reply():
                return float("inf")
            late = self._last_reply + SILENCE_TIMEOUT
            if now >= late:
                if not self.on_time or self._lags():
                    return now
                self._disconnect(StoreFailure.TIMEOUT, f"silent for {SILENCE_TIMEOUT:g} s", now)
                return self._next
            return late
        if now >= self._next and not self._stopped:
            if self.state == HANDSHAKE:
                self._disconnect(StoreFailure.TIMEOUT, "the handshake was not answered", now)
            else:
                self._dial(now)
        return self._next

    def _lags(self) -> bool:
        """Whether the server has sent what this worker has not handled: a reply that seems late may be there."""
        return self.more_replies or self._wire.unread()

    def receive(self, data: bytes, quantum: int, now: float) -> int:
        """The server sent *data*: handle replies for about *quantum* units; return the units used."""
        reader = self._reader
        self._last_reply = now
        if data:
            reader.feed(data)
        self.more_replies = True  # also if handling a reply raises an exception
        units = 0
        while units < quantum:
            try:
                reply = reader.gets()
            except ProtocolError as error:
                self._disconnect(StoreFailure.MALFORMED_REPLY, str(error), now)
                return units
            if reply is NOTHING:
                self.more_replies = False
                return units
            if self.state == READY:
                units += self._replied(reply, now)
            else:
                units += REPLY
                self._handshake_reply(reply, now)
            if self._reader is not reader:  # the reply has ended the connection
                return units
        return units

    def lost(self, why: str, now: float, failure: StoreFailure | None = None) -> None:
        """The connection has ended, or could not be made. *failure*: the reason, if the byte stream knows it."""
        if self.state != DISCONNECTED:
            if failure is None:
                failure = StoreFailure.UNREACHABLE if self.state == HANDSHAKE else StoreFailure.LOST
            self._disconnect(failure, why, now)

    # What a subclass defines.

    def _replied(self, reply: object, now: float) -> int:
        """Handle the next reply, a ReplyError if it is an error of the server; return the units used."""
        raise NotImplementedError

    def _ready(self, now: float) -> None:
        """The connection has become READY."""
        raise NotImplementedError

    def _disconnected(self, failure: StoreFailure, now: float) -> None:
        """The connection has ended: commands without a reply are lost."""
        raise NotImplementedError

    def _expects_reply(self) -> bool:
        """Whether the server has a command to answer."""
        raise NotImplementedError

    def _dial(self, now: float) -> None:
        self._reader = Reader(notEnoughData=NOTHING)
        self.more_replies = False
        self.state = HANDSHAKE
        self._next = now + HANDSHAKE_TIMEOUT
        failure = self._wire.open(self._address, self)
        if failure:
            self._disconnect(StoreFailure.UNREACHABLE, failure, now)
            return
        self._id = 0
        self._handshake_left.clear()
        for kind, command in self._handshake():
            self._ask(kind, command)

    def _handshake(self) -> list[tuple[int, bytes]]:
        """The commands that come first. PING is last: a server that still loads its data refuses it."""
        address = self._address
        commands: list[tuple[int, bytes]] = []
        if address.user:
            commands.append((REQUIRED, packed("AUTH", address.user, address.password)))
        elif address.password:
            commands.append((REQUIRED, packed("AUTH", address.password)))
        if address.db:
            commands.append((REQUIRED, packed("SELECT", address.db)))
        if self._former_id:
            commands.append((FORMER, packed("CLIENT", "LIST", "ID", self._former_id)))
        commands.append((REQUIRED, packed("CLIENT", "SETNAME", self._name)))
        if self._ends_former:
            commands.append((IDENTITY, packed("CLIENT", "ID")))
        commands.append((REQUIRED, packed("PING")))
        return commands

    def _ask(self, kind: int, command: bytes) -> None:
        self._handshake_left.append(kind)
        self._wire.write(command)

    def _handshake_reply(self, reply: object, now: float) -> None:
        if not self._handshake_left:
            self._disconnect(StoreFailure.MALFORMED_REPLY, "a reply without a command", now)
            return
        kind = self._handshake_left.popleft()
        if isinstance(reply, ReplyError):
            if kind == REQUIRED:
                self._disconnect(failure_of(reply), str(reply), now)
                return
            if not self._cannot_end:
                self._cannot_end = True
                self._log.warning("redis_former_connection_stays", connection=self._name, detail=str(reply))
        elif kind == IDENTITY and isinstance(reply, int):
            self._id = reply
        elif kind == FORMER and isinstance(reply, bytes) and b" name=%b " % self._name.encode() in reply:
            self._ask(KILL, packed("CLIENT", "KILL", "ID", self._former_id))
        if not self._handshake_left:
            self._former_id = self._id
            self.state = READY
            self.times_ready += 1
            self._pause = FIRST_PAUSE
            if self._logged is not None or self.times_ready == 1:
                self._log.info("redis_connected", address=str(self._address), connection=self._name)
            self._logged = None
            self._ready(now)

    def _disconnect(self, failure: StoreFailure, detail: str, now: float) -> None:
        """Close the connection, if there is one, and connect again after a pause."""
        if self.state == READY:
            self.down_since = now
        self._wire.close()
        self._reader = Reader(notEnoughData=NOTHING)  # part of a reply may be in the former one
        self.more_replies = False
        self.state = DISCONNECTED
        self._next = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if failure is not self._logged and not self._stopped:
            self._logged = failure
            facts: dict[str, object] = {"reason": failure.label, "address": str(self._address)}
            self._log.warning("redis_unavailable", why=failure.words, detail=detail, connection=self._name, **facts)
        self._disconnected(failure, now)


def failure_of(error: ReplyError) -> StoreFailure:
    """What an error of the server means.

    Redis 6.2 puts the code of an error in a script into the middle, and every server that of why it refuses EXEC.
    """
    text = str(error)
    code = text.split(" ", 1)[0]
    if code in CODES:
        return CODES[code]
    for word, failure in CODES.items():
        if f"-{word} " in text or f"because of: {word} " in text:
            return failure
    return StoreFailure.REFUSED
