# The task of a WebSocket connection: trio-websocket on a stream in memory.
#
# It unframes what the reactor brings from the socket and frames what the reactor has to send, and decides nothing: the
# bytes of MQTT are parsed, limited and scheduled where all others are. The reactor's end is websocket.py.
from collections.abc import Callable
from typing import Final

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, wrap_server_stream
from wsproto.utilities import LocalProtocolError

from broker.net.websocket import WebSocketLayer
from broker.reasons import CloseReason

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")  # [MQTT-6.0.0-4]; the second is what clients of 3.1 say
NORMAL: Final = 1000  # close codes (RFC 6455, 7.4.1)
NOT_BINARY: Final = 1003
BROKEN: Final = (1002, 1007, 1009)  # protocol error, no UTF-8, too large: trio-websocket's own verdict
UNSAID: Final = (1002, 1007)  # and these it keeps to itself (RFC 6455, 7.1.7, wants them said)
CLOSE_FRAME: Final = b"\x88\x02"  # and a code
# A client that sends so many times the bytes of the largest message without finishing one sends empty fragments, which
# trio-websocket keeps.
OVERHEAD: Final = 2


class Unframing:
    """Serves one connection, on *path*, with messages of at most *message_bytes*; *failed* hears of our mistakes."""

    def __init__(
        self, layer: WebSocketLayer, path: str, message_bytes: int, failed: Callable[[Exception], None]
    ) -> None:
        self._layer = layer
        self._path = path
        self._message_bytes = message_bytes
        self._failed = failed
        self._scope = trio.CancelScope()
        self._pipe = _Pipe(layer, message_bytes * OVERHEAD, self._scope)
        self._accepted = False
        self._taken = trio.Event()
        self._outgoing = b""
        self._wanted = trio.Event()  # there is something to send, or the end
        self._ending = False
        self._ended = trio.Event()
        self._code = NORMAL

    async def run(self) -> None:
        """Serve until the client or the reactor ends it."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await self._converse(nursery)
                    nursery.cancel_scope.cancel()
        except Exception as error:
            if not self._pipe.accepted and _only(error, UnicodeError):
                self._pipe.refused = "a header that is no text"  # which wsproto does not expect
            elif not _only(error, ConnectionClosed, LocalProtocolError, trio.BrokenResourceError):
                self._layer.fail(CloseReason.INTERNAL_ERROR, type(error).__name__)
                self._failed(error)
        if self._pipe.refused:
            self._layer.fail(CloseReason.WEBSOCKET_ERROR, self._pipe.refused)
        self._layer.finish()

    async def _converse(self, nursery: trio.Nursery) -> None:
        request = await wrap_server_stream(
            nursery, self._pipe, message_queue_size=0, max_message_size=self._message_bytes, receive_buffer_size=None
        )
        websocket = await self._accept(request)
        if websocket is None:
            return
        self._accepted = self._pipe.accepted = True
        nursery.start_soon(self._speak, websocket)
        try:
            while True:
                await self._hand_on(await websocket.get_message())
        except ConnectionClosed as closed:
            if self._ending:
                await self._ended.wait()
            elif closed.reason is None or closed.reason.code in BROKEN:
                why = "not WebSocket" if closed.reason is None else str(closed.reason.reason)
                self._layer.fail(CloseReason.WEBSOCKET_ERROR, why)
                if closed.reason is not None and closed.reason.code in UNSAID:
                    # Who said this code itself hears it a second time, which harms nobody.
                    await self._pipe.send_all(CLOSE_FRAME + int(closed.reason.code).to_bytes(2, "big"))

    async def _accept(self, request: WebSocketRequest) -> WebSocketConnection | None:
        """The connection, if what it asks for is MQTT here."""
        path = request.path.partition("?")[0]
        subprotocol = next((name for name in request.proposed_subprotocols if name in SUBPROTOCOLS), None)
        if path != self._path:
            await request.reject(404, body=f"MQTT is at {self._path}\n".encode())
            self._layer.fail(CloseReason.WEBSOCKET_REFUSED, f"path {path!r}")
        elif subprotocol is None:  # [MQTT-6.0.0-3]; who does not name it may not expect MQTT
            await request.reject(400, body=b"The subprotocol here is mqtt\n")
            self._layer.fail(CloseReason.WEBSOCKET_REFUSED, f"subprotocols {request.proposed_subprotocols!r}")
        else:
            return await request.accept(subprotocol=subprotocol)  # [MQTT-6.0.0-4]
        return None

    async def _hand_on(self, message: str | bytes) -> None:
        self._pipe.since_message = 0
        if isinstance(message, str):
            self._code = NOT_BINARY
            self._layer.fail(CloseReason.WEBSOCKET_TEXT, "a text frame")  # [MQTT-6.0.0-1]
        elif message and self._code == NORMAL:
            if not self._layer.give(message):  # its borders mean nothing [MQTT-6.0.0-2]
                self._taken = trio.Event()
                await self._taken.wait()

    # What the layer tells.

    def arrived(self) -> None:
        self._pipe.arrived.set()

    def taken(self) -> None:
        self._taken.set()

    def drained(self) -> None:
        self._pipe.drained.set()

    def send(self, data: bytes) -> None:
        self._outgoing = data
        self._wanted.set()

    def end(self) -> None:
        self._ending = True
        self._wanted.set()
        if not self._accepted:
            self._scope.cancel()

    def cancel(self) -> None:
        self._scope.cancel()

    async def _speak(self, websocket: WebSocketConnection) -> None:
        """Send what is to be sent, and at last that this is all."""
        try:
            while not self._ending:
                await self._wanted.wait()
                self._wanted = trio.Event()
                if self._outgoing:
                    data = self._outgoing
                    self._outgoing = b""
                    await websocket.send_message(data)
                    self._layer.sent()
            await websocket.aclose(self._code)
        except ConnectionClosed:
            pass  # who listens hears of it, too
        self._ended.set()


class _Pipe(trio.abc.Stream):
    """What trio-websocket takes for a network: the layer, and through it the reactor."""

    def __init__(self, layer: WebSocketLayer, limit: int, scope: trio.CancelScope) -> None:
        self.arrived = trio.Event()
        self.drained = trio.Event()
        self.accepted = False  # the handshake is done
        self.since_message = 0  # bytes that came since the last whole message
        self.refused = ""  # why nothing more is taken
        self._layer = layer
        self._limit = limit
        self._scope = scope

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        raw = self._layer.take()
        while raw is None:
            self.arrived = trio.Event()
            await self.arrived.wait()
            raw = self._layer.take()
        if not raw and not self.accepted:
            self._scope.cancel()  # trio-websocket would wait for the request for ever
        self.since_message += len(raw)
        if self.since_message > self._limit:
            self.refused = "no end of a message"
            raise trio.BrokenResourceError
        return raw

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self.drained = trio.Event()
            if not self._layer.push(bytes(data)):
                await self.drained.wait()
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        if not self.accepted:  # what came was no request, and was answered
            self.refused = self.refused or "no WebSocket request"
            self._scope.cancel()
        await trio.lowlevel.checkpoint()


def _only(error: Exception, *kinds: type[Exception]) -> bool:
    """It is, or holds, nothing else.

    A LocalProtocolError is a ping that trio-websocket answers while it closes, a BrokenResourceError a client that
    was gone before it heard our last word.
    """
    if isinstance(error, ExceptionGroup):
        return error.split(kinds)[1] is None
    return isinstance(error, kinds)
