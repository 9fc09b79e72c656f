# The sockets of a load in one process: one epoll, one recv for what is there, one send for what is to go.
#
# Its work per turn is that of the clients whose sockets have something. It knows no MQTT but that a client says when
# it is up; who publishes when is decided in pacing.py, between `turn()` and `flush()`.
import errno
import select
import socket
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from broker.reasons import ProtocolError
from cli.load.channel import Channel, Hangup
from cli.load.client import UP, Client, Refused

IN: Final = 0x001
OUT: Final = 0x004
EVENTS: Final = 1024
READ: Final = 64 * 1024
FULL: Final = 256 * 1024  # unsent bytes from which on nothing more is published to a connection
AT_ONCE: Final = 128  # connections that are being made at a time: more would overflow the queue of a listener


def now_us() -> int:
    """The monotonic time that all processes of this machine share, in us."""
    return time.monotonic_ns() // 1000


class Outcome:
    """What became of the connections; times in us."""

    def __init__(self) -> None:
        self.connected = 0
        self.connect_times: list[int] = []
        self.lost = 0
        self.first_lost = 0
        self.reconnects = 0
        self.failures = 0  # attempts to come back that failed
        self.why: Exception | None = None  # the first of those that were lost


class Connection:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.channel: Channel | None = None
        self.fd = -1
        self.began = 0  # us
        self.open = False  # MQTT is spoken
        self.dirty = False  # waits for its flush
        self.unsent = b""
        self.writing = False  # the kernel tells us when it takes more
        self.attempts = 0  # since it was up


class Network:
    """*dial* begins a connection (OSError: this machine cannot); *patience*: seconds for it to be up."""

    def __init__(self, dial: Callable[[], Channel], patience: float) -> None:
        self.epoll = select.epoll()
        self.outcome = Outcome()
        self.up = 0
        self.forgiving = False  # a connection that fails is tried again, else `failure` says so
        self.failure: Exception | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self._new_channel = dial
        self._patience = int(patience * 1_000_000)
        self._connections: list[Connection | None] = []  # by descriptor
        self._of: dict[Client, Connection] = {}
        self._dirty: list[Connection] = []  # those of publishers that answered something
        self._dialling: dict[Connection, None] = {}
        self._returning: list[tuple[int, int, Connection]] = []  # a heap: when (us), tie-breaker, who
        self.woken: list[Client] = []  # came up, or can send again

    def connecting(self) -> int:
        """Connections that are being made."""
        return len(self._dialling)

    def start(self, client: Client, now: int) -> None:
        """Begin to connect *client*."""
        connection = Connection(client)
        self._of[client] = connection
        self._dial(connection, now)

    def turn(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds for something to come, and take it; False if nothing came.

        That of subscribers first: what they are sent is measured as it is read, and should not wait for what publishers
        are told of it.
        """
        events = self.epoll.poll(timeout, EVENTS)
        connections = self._connections
        of_publishers: list[tuple[Connection, int]] = []
        for fd, mask in events:
            connection = connections[fd] if fd < len(connections) else None
            if connection is None:
                continue
            if connection.client.publishes:
                of_publishers.append((connection, mask))
            else:
                self._take(connection, mask)
        for connection, mask in of_publishers:
            self._take(connection, mask)
        return len(events) > 0

    def _take(self, connection: Connection, mask: int) -> None:
        try:
            if mask & ~OUT and connection.open:
                self._receive(connection)
            elif not connection.open:
                self._establish(connection)
            if mask & OUT and connection.writing:
                self._send(connection)
        except (OSError, Hangup, Refused, ProtocolError) as error:
            self._end(connection, error)

    def send(self, client: Client) -> None:
        """Send what *client* wants to send.

        At once and not with that of all others: while we write for the next one, the broker can work for this one.
        """
        connection = self._of[client]
        if connection.open and not connection.writing:
            try:
                self._send(connection)
            except OSError as error:
                self._end(connection, error)

    def full(self, client: Client) -> bool:
        """The kernel has not taken what *client* sent before."""
        return self._of[client].writing

    def flush(self) -> None:
        """Send what publishers answered and did not send with a message."""
        dirty = self._dirty
        if dirty:
            self._dirty = []
            for connection in dirty:
                connection.dirty = False
                if connection.client.out:
                    self.send(connection.client)

    def look_after(self, now: int) -> None:
        """Give up what takes too long, and try again what was lost."""
        late = [connection for connection in self._dialling if now - connection.began > self._patience]
        for connection in late:
            self._end(connection, TimeoutError("no answer"))
        while self._returning and self._returning[0][0] <= now:
            self._dial(heappop(self._returning)[2], now)

    def close(self) -> None:
        for connection in self._connections:
            if connection is not None:
                self._drop(connection)
        self.epoll.close()

    def _dial(self, connection: Connection, now: int) -> None:
        connection.began = now
        self._dialling[connection] = None
        try:
            channel = self._new_channel()
        except OSError as error:
            self._end(connection, error)
            return
        connection.channel = channel
        fd = channel.sock.fileno()
        connection.fd = fd
        while len(self._connections) <= fd:
            self._connections.append(None)
        self._connections[fd] = connection
        connection.writing = True
        self.epoll.register(fd, IN | OUT)

    def _establish(self, connection: Connection) -> None:
        """The kernel has news of a connection on which no MQTT was spoken yet."""
        channel = connection.channel
        assert channel is not None
        trouble = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if trouble:
            raise OSError(trouble, errno.errorcode.get(trouble, ""))
        if channel.shake():
            connection.open = True
            connection.client.open()
        self._send(connection)

    def _receive(self, connection: Connection) -> None:
        channel = connection.channel
        assert channel is not None
        try:
            data = channel.receive(READ)
        except BlockingIOError:
            return
        if not data:
            raise Hangup
        self.bytes_received += len(data)
        client = connection.client
        before = client.state
        now = now_us()
        client.take(data, now)
        if before != UP and client.state == UP:
            self._came_up(connection, now)
        elif client.publishes:
            self.woken.append(client)  # acknowledgements make room
        if client.out:
            if not client.publishes:
                self._send(connection)
            elif not connection.dirty:  # it may have more to send when it is asked, right after this turn
                connection.dirty = True
                self._dirty.append(connection)

    def _came_up(self, connection: Connection, now: int) -> None:
        self._dialling.pop(connection, None)
        self.up += 1
        if connection.attempts:
            self.outcome.reconnects += 1
        else:
            self.outcome.connected += 1
            self.outcome.connect_times.append(now - connection.began)
        connection.attempts = 0
        self.woken.append(connection.client)

    def _send(self, connection: Connection) -> None:
        channel = connection.channel
        assert channel is not None
        client = connection.client
        data = connection.unsent
        if client.out and connection.open:
            written = client.out
            client.out = []
            if data:
                written.insert(0, data)
            data = written[0] if len(written) == 1 else b"".join(written)
        count = 0
        size = len(data)
        try:
            if channel.unsent:
                channel.flush()
            while count < size:
                count += channel.send(data[count:] if count else data)
        except BlockingIOError:
            pass
        self.bytes_sent += count
        connection.unsent = data[count:] if count else data
        wanted = count < size or channel.unsent
        if wanted != connection.writing:
            connection.writing = wanted
            self.epoll.modify(connection.fd, IN | OUT if wanted else IN)
            if not wanted:
                self.woken.append(client)

    def _end(self, connection: Connection, error: Exception) -> None:
        """*connection* is gone, or did not come."""
        was_up = connection.client.state == UP
        self._dialling.pop(connection, None)
        self._drop(connection)
        connection.client.lost()
        outcome = self.outcome
        if was_up:
            self.up -= 1
            outcome.lost += 1
            if outcome.why is None:
                outcome.why = error
                outcome.first_lost = now_us()
        else:
            outcome.failures += 1
        if not self.forgiving:
            if self.failure is None:
                self.failure = error
            return
        connection.attempts += 1
        pause = min(5_000_000, 100_000 << min(connection.attempts, 6))
        heappush(self._returning, (now_us() + pause, outcome.lost + outcome.failures, connection))

    def _drop(self, connection: Connection) -> None:
        channel = connection.channel
        if channel is not None:
            self._connections[connection.fd] = None
            channel.sock.close()  # leaves the epoll by itself
        connection.channel = None
        connection.fd = -1
        connection.open = False
        connection.writing = False
        connection.unsent = b""
