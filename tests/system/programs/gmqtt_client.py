# gmqtt: asyncio again, with a codec and a session of its own, on 5.0. Its loop runs only while we wait in it.
import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Any, Final

import gmqtt
from gmqtt.storage import PersistentStorage

from tests.system.addresses import Address
from tests.system.processes import HOST, PATIENCE
from tests.system.programs.interface import SESSION_SECONDS, SILENT, NothingCame, Received, Said, Wish

NEVER: Final = -2  # reconnect; 0 still allows one attempt, and -1 means "for ever"


def publication(said: Said) -> dict[str, Any]:
    named = {
        "content_type": said.content_type,
        "response_topic": said.response_topic,
        "correlation_data": said.correlation,
        "user_property": list(said.user),
        "message_expiry_interval": said.expiry,
        "topic_alias": said.alias,
    }
    return {name: value for name, value in named.items() if value}


def what_it_says(told: dict[str, Any]) -> Said:
    return Said(
        told.get("content_type", [""])[0],
        told.get("response_topic", [""])[0],
        bytes(told.get("correlation_data", [b""])[0]),
        tuple(told.get("user_property", [])),
        told.get("message_expiry_interval", [0])[0],
        told.get("topic_alias", [0])[0],
        tuple(told.get("subscription_identifier", [])),
    )


async def connected(address: Address, client: gmqtt.Client) -> None:
    client.reconnect_retries = NEVER
    await asyncio.wait_for(client.connect(HOST, address.port, ssl=address.context() or False), PATIENCE)


async def disconnected(client: gmqtt.Client) -> None:
    # Over TLS, asyncio takes offence at what the broker had still under way when we said goodbye.
    with contextlib.suppress(ssl.SSLError):
        await client.disconnect()


class GmqttListener:
    def __init__(self, runner: asyncio.Runner, client: gmqtt.Client) -> None:
        self.ended = False
        self._runner = runner
        self._client = client
        self._messages: asyncio.Queue[Received] = asyncio.Queue()
        self._farewells: asyncio.Queue[int] = asyncio.Queue()
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect

    def take(self, patience: float = PATIENCE) -> Received:
        try:
            return self._runner.run(self._next(patience))
        except TimeoutError:
            raise NothingCame from None

    async def _next(self, patience: float) -> Received:
        return await asyncio.wait_for(self._messages.get(), patience)

    def farewell(self) -> int:
        return self._runner.run(self._farewell())

    async def _farewell(self) -> int:
        return await asyncio.wait_for(self._farewells.get(), PATIENCE)

    def leave(self) -> None:
        self.ended = True
        self._runner.run(disconnected(self._client))
        self._runner.close()

    def die(self) -> None:
        self.ended = True
        self._runner.run(self._abort())
        self._runner.close()

    async def _abort(self) -> None:
        connection = self._client._connection  # it has no public way to leave without a DISCONNECT
        connection._transport.abort()
        await connection.close()

    def _on_message(self, _client: gmqtt.Client, topic: str, payload: bytes, qos: int, told: dict[str, Any]) -> int:
        self._messages.put_nowait(Received(topic, bytes(payload), qos, bool(told["retain"]), what_it_says(told)))
        return 0

    def _on_disconnect(self, _client: gmqtt.Client, packet: bytes, exc: Exception | None = None) -> None:
        if packet:  # its reason code, and more; the mere end of the stream has none
            self._farewells.put_nowait(packet[0])


class Gmqtt:
    def listen(self, address: Address, topic_filter: str, wish: Wish) -> GmqttListener:
        runner = asyncio.Runner()
        return runner.run(self._listen(runner, address, topic_filter, wish))

    async def _listen(self, runner: asyncio.Runner, address: Address, topic_filter: str, wish: Wish) -> GmqttListener:
        options = {"session_expiry_interval": SESSION_SECONDS} if wish.session else {}
        if wish.aliases:
            options["topic_alias_maximum"] = wish.aliases
        will = None if wish.will is None else gmqtt.Message(wish.will.topic, wish.will.payload, qos=1)
        client = gmqtt.Client(wish.session or None, clean_session=not wish.session, will_message=will, **options)
        listener = GmqttListener(runner, client)
        subscribed = asyncio.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        await connected(address, client)
        identifier = {"subscription_identifier": wish.identifier} if wish.identifier else {}
        client.subscribe(topic_filter, wish.qos, **identifier)
        await asyncio.wait_for(subscribed.wait(), PATIENCE)
        return listener

    def publish(
        self,
        address: Address,
        topic: str,
        payloads: Sequence[bytes],
        qos: int = 0,
        *,
        retain: bool = False,
        said: Said = SILENT,
    ) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._publish(address, topic, payloads, qos, retain, said))

    async def _publish(
        self, address: Address, topic: str, payloads: Sequence[bytes], qos: int, retain: bool, said: Said
    ) -> None:
        unacknowledged = PersistentStorage()
        client = gmqtt.Client(None, persistent_storage=unacknowledged)
        await connected(address, client)
        for payload in payloads:
            client.publish(topic, payload, qos, retain, **publication(said))
            topic = "" if said.alias else topic
        await asyncio.wait_for(unacknowledged.wait_empty(), PATIENCE)
        await disconnected(client)
