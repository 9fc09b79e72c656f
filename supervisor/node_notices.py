# Notices on a channel of Redis that the list of nodes has changed: without them a node would learn of it with its next
# renewal, seconds later, and its clients would wait for a node that is gone.
#
# A notice says only that there is a change, if it is no request (node_requests.py): what is lost while Redis cannot be
# reached costs nothing, as the list is read anew when the subscription stands again. redis-py blocks, so a thread of
# trio waits for the next message.
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import redis
import trio
from redis.client import PubSub

from supervisor.node_lease import RETRY, Server

QUIET: Final = 5.0  # seconds without a message, after which the server is asked for one, and again to have answered


class NodeNotices:
    def __init__(self, server: Server, channel: bytes, me: str) -> None:
        """*server* opens a client. *me*: notices with this content are our own."""
        self.heard = 0
        self._server = server
        self._channel = channel
        self._me = me.encode()
        self._connection = trio.CancelScope()

    async def listen(self, heard: Callable[[bytes], None]) -> None:
        """For ever: call *heard* with each notice of another node, and with b"" when some may have been missed."""
        while True:
            with suppress(redis.RedisError, OSError), trio.CancelScope() as self._connection:
                await self._listen(heard)
            await trio.sleep(RETRY)

    def moved(self) -> None:
        """The server has another address."""
        self._connection.cancel()

    async def _listen(self, heard: Callable[[bytes], None]) -> None:
        """Until the connection ends. redis.RedisError, OSError."""
        with self._server() as server, server.pubsub() as subscription:
            await trio.to_thread.run_sync(subscription.subscribe, self._channel, abandon_on_cancel=True)
            while True:
                content = await trio.to_thread.run_sync(_next, subscription, abandon_on_cancel=True)
                if content != self._me:
                    self.heard += 1
                    heard(content)


def _next(subscription: PubSub) -> bytes:
    """Wait for the content of the next notice; b"": the subscription stands from now on. redis.RedisError."""
    asked = False
    while True:
        message = subscription.get_message(timeout=QUIET)
        if message is None:
            if asked:
                raise redis.TimeoutError("the server does not answer")
            asked = True
            subscription.ping()
            continue
        asked = False
        if message["type"] == "message":
            return bytes(message["data"])
        if message["type"] == "subscribe":
            return b""
