# The task that answers the HTTP request for a WebSocket: trio-websocket on a stream in memory, which holds that request
# and nothing else. The task ends with the answer. What is received later is parsed by the layer (websocket.py, which
# says why).
from collections.abc import Callable
from typing import Final

import trio
from trio_websocket import WebSocketRequest, wrap_server_stream

from broker.net.transports.websocket import NO_REQUEST, WebSocketLayer
from broker.reasons import CloseReason

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")  # [MQTT-6.0.0-4]; clients of 3.1 name the second


class Upgrade:
    """Answers *request*, which should be for *path*. *failed* is called with unexpected exceptions."""

    def __init__(self, layer: WebSocketLayer, request: bytes, path: str, failed: Callable[[Exception], None]) -> None:
        self._layer = layer
        self._path = path
        self._failed = failed
        self._scope = trio.CancelScope()
        self._pipe = _Pipe(layer, request, self._scope)

    async def run(self) -> None:
        """Accept or refuse the request."""
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
                refusal = "a header that is no text"  # wsproto does not handle it
            else:
                reason = CloseReason.INTERNAL_ERROR
                refusal = type(errors).__name__
                self._failed(errors)
        if self._scope.cancelled_caught:  # by the pipe; or by the layer, which ignores the answer then
            refusal = NO_REQUEST
        if refusal:
            self._layer.refuse(reason, refusal)
        else:
            self._layer.accept()

    def cancel(self) -> None:
        self._scope.cancel()

    async def _answer(self, asked: WebSocketRequest) -> str:
        """Accept a request for MQTT; return "", or why it is refused."""
        path = asked.path.partition("?")[0]
        subprotocol = next((name for name in asked.proposed_subprotocols if name in SUBPROTOCOLS), None)
        if path != self._path:
            await asked.reject(404, body=f"MQTT is at {self._path}\n".encode())
            return f"path {path!r}"
        if subprotocol is None:  # [MQTT-6.0.0-3]; a client that does not name it may not expect MQTT
            await asked.reject(400, body=b"The subprotocol here is mqtt\n")
            return f"subprotocols {asked.proposed_subprotocols!r}"
        await asked.accept(subprotocol=subprotocol)  # [MQTT-6.0.0-4]
        return ""


class _Pipe(trio.abc.Stream):
    """The stream for trio-websocket: it receives *request*, and what is sent goes to the layer."""

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
        """trio-websocket closes only after it has answered an invalid request."""
        self._scope.cancel()
        await trio.lowlevel.checkpoint()
