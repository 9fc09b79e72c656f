# A layer lies between a socket and the bytes of MQTT: TLS is one, WebSocket is one, and wss is WebSocket on TLS.
#
# Bytes are received from a layer and given to it as to a socket. The loop watches the socket itself, so fairness,
# limits and closing are the same on every transport.


class Layer:
    def __init__(self) -> None:
        self.more = False  # recv() has bytes to give, even if the kernel has none
        self.unsent = False  # bytes of the layer's own wait for the kernel; send() takes nothing before they are gone
        self.buffered = 0  # bytes received and not given yet
        self.cost = 0  # units of work that the last recv() used, beside what the bytes it gave will cost
        self.identity = ""  # the common name in the verified certificate of the peer; "" without one

    def recv(self, size: int) -> bytes:
        """Return at most about *size* bytes of MQTT; b"" at the end.

        BlockingIOError: nothing now. OSError: reset. ProtocolError: the peer does not keep to the layer's protocol.
        """
        raise NotImplementedError

    def send(self, data: bytes | memoryview) -> int:
        """Send bytes of *data*; return how many were taken, 0 if none can be taken now. OSError: reset.

        The next call begins with the byte after those that were taken.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Tell the peer that no more bytes will come. OSError: reset."""
        raise NotImplementedError

    def close(self) -> None:
        """The socket is about to be closed."""
        raise NotImplementedError
