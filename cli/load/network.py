# The sockets of one process of a load: one epoll, and per event one recv and one send.
#
# A turn processes only clients whose sockets are ready. The network does not interpret MQTT, except for the state UP of
# a client. pacing.py decides which client publishes when, between `turn()` and `flush()`.
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
FULL: Final = 256 * 1024  # bytes that are published to a connection at once
AT_ONCE: Final = 128  # simultaneous connection attempts: more would overflow the backlog of a listener


def now_us() -> int:
    """Return the monotonic time in us, which all processes of this machine share."""
    return time.monotonic_ns() // 1000


class Outcome:
    """Counters of the connections; times in us."""

    def __init__(self) -> None:
        self.connected = 0
        self.connect_times: list[int] = []
        self.lost = 0
        self.first_lost = 0
        self.reconnects = 0
        self.failures = 0  # failed connection attempts
        self.why: Exception | None = None  # the error of the first loss


class Connection:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.channel: Channel | None = None
        self.fd = -1
        self.began = 0  # us
        self.open = False  # the transport is established
        self.dirty = False  # in the list of connections to flush
        self.unsent = b""
        self.writing = False  # registered for EPOLLOUT
        self.attempts = 0  # since the connection was up


class Network:
    """*dial* starts a connection (OSError: not possible on this machine); *timeout*: seconds until it must be up."""

    def __init__(self, dial: Callable[[], Channel], timeout: float) -> None:
        self.epoll = select.epoll()
        self.outcome = Outcome()
        self.up = 0
        self.forgiving = False  # true: failed connections are retried; false: `failure` is set
        self.failure: Exception | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self._new_channel = dial
        self._timeout = int(timeout * 1_000_000)
        self._connections: list[Connection | None] = []  # by descriptor
        self._of: dict[Client, Connection] = {}
        self._dirty: list[Connection] = []  # publishers with replies to send
        self._dialling: dict[Connection, None] = {}
        self._returning: list[tuple[int, int, Connection]] = []  # a heap: (retry time in us, tie-breaker, connection)
        self.woken: list[Client] = []  # established, or writable again

    def connecting(self) -> int:
        """Return the number of connection attempts in progress."""
        return len(self._dialling)

    def start(self, client: Client, now: int) -> None:
        """Start to connect *client*."""
        connection = Connection(client)
        self._of[client] = connection
        self._dial(connection, now)

    def turn(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds for events and process them; return whether there were any.

        Subscribers come first: latencies are measured when messages are read, and should not include the processing of
        acknowledgements.
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
        """Send the pending bytes of *client* at once, not together with those of other clients.

        So the broker can process them while the next client writes.
        """
        connection = self._of[client]
        if connection.open and not connection.writing:
            try:
                self._send(connection)
            except OSError as error:
                self._end(connection, error)

    def full(self, client: Client) -> bool:
        """Return whether bytes of *client* still wait for the kernel."""
        return self._of[client].writing

    def flush(self) -> None:
        """Send replies of publishers that were not sent together with messages."""
        dirty = self._dirty
        if dirty:
            self._dirty = []
            for connection in dirty:
                connection.dirty = False
                if connection.client.out:
                    self.send(connection.client)

    def maintain(self, now: int) -> None:
        """Abort connection attempts that take too long, and reconnect lost connections."""
        late = [connection for connection in self._dialling if now - connection.began > self._timeout]
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
        """Handle an event of a connection whose transport is not established yet."""
        channel = connection.channel
        assert channel is not None
        failure = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, errno.errorcode.get(failure, ""))
        if channel.handshake():
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
            self._established(connection, now)
        elif client.publishes:
            self.woken.append(client)  # acknowledgements make room in the window
        if client.out:
            if not client.publishes:
                self._send(connection)
            elif not connection.dirty:  # the publisher may add messages right after this turn
                connection.dirty = True
                self._dirty.append(connection)

    def _established(self, connection: Connection, now: int) -> None:
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
        """Handle a lost or failed connection."""
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
            channel.sock.close()  # also removes the socket from the epoll
        connection.channel = None
        connection.fd = -1
        connection.open = False
        connection.writing = False
        connection.unsent = b""
