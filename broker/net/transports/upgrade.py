# The task that answers one WebSocket request: trio-websocket on a stream in memory, which holds that request and no
# more. When it is answered the task ends; what comes over the WebSocket is the layer's own (websocket.py, which says
# why), and so is all that has to do with the reactor.
from collections.abc import Callable
from typing import Final

import trio
from trio_websocket import WebSocketRequest, wrap_server_stream

from broker.net.transports.websocket import NO_REQUEST, WebSocketLayer
from broker.reasons import CloseReason

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")  # [MQTT-6.0.0-4]; the second is what clients of 3.1 say


class Upgrade:
    """Answers *request*, which should be for *path*; *failed* hears of our mistakes."""

    def __init__(self, layer: WebSocketLayer, request: bytes, path: str, failed: Callable[[Exception], None]) -> None:
        self._layer = layer
        self._path = path
        self._failed = failed
        self._scope = trio.CancelScope()
        self._pipe = _Pipe(layer, request, self._scope)

    async def run(self) -> None:
        """Accept or refuse."""
        refusal = ""
        reason = CloseReason.WEBSOCKET_ERROR
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    asked = await wrap_server_stream(nursery, self._pipe)
                    reason = CloseReason.WEBSOCKET_REFUSED
                    refusal = await self._answer(asked)
                    nursery.cancel_scope.cancel()
        except ExceptionGroup as errors:
            if errors.split(UnicodeError)[1] is None:
                refusal = "a header that is no text"  # which wsproto does not expect
            else:
                reason = CloseReason.INTERNAL_ERROR
                refusal = type(errors).__name__
                self._failed(errors)
        if self._scope.cancelled_caught:  # by the pipe, or the layer, which does not mind any more
            refusal = NO_REQUEST
        if refusal:
            self._layer.refuse(reason, refusal)
        else:
            self._layer.accept()

    def cancel(self) -> None:
        self._scope.cancel()

    async def _answer(self, asked: WebSocketRequest) -> str:
        """Accept what asks for MQTT here; why not, if it does not."""
        path = asked.path.partition("?")[0]
        subprotocol = next((name for name in asked.proposed_subprotocols if name in SUBPROTOCOLS), None)
        if path != self._path:
            await asked.reject(404, body=f"MQTT is at {self._path}\n".encode())
            return f"path {path!r}"
        if subprotocol is None:  # [MQTT-6.0.0-3]; who does not name it may not expect MQTT
            await asked.reject(400, body=b"The subprotocol here is mqtt\n")
            return f"subprotocols {asked.proposed_subprotocols!r}"
        await asked.accept(subprotocol=subprotocol)  # [MQTT-6.0.0-4]
        return ""


class _Pipe(trio.abc.Stream):
    """What trio-websocket takes for a network: it brings *request*, and takes the answer to the layer."""

    def __init__(self, layer: WebSocketLayer, request: bytes, scope: trio.CancelScope) -> None:
        self._layer = layer
        self._request = request
        self._scope = scope

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        request = self._request
        self._request = b""
        if not request:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return request

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._layer.push(bytes(data))
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """What came was no request, and was answered: nothing else closes here."""
        self._scope.cancel()
        await trio.lowlevel.checkpoint()
