# aiomqtt: asyncio. Its loop runs only while one of our calls waits in it.
import asyncio
import contextlib
import socket
from collections.abc import Sequence

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.reasoncodes import ReasonCode

from tests.system.addresses import PATH, Address
from tests.system.processes import HOST, PATIENCE
from tests.system.programs.interface import SILENT, NothingCame, Received, Said, Wish
from tests.system.programs.paho_client import kept_session, publication, subscription, what_it_says


class AiomqttListener:
    def __init__(self, runner: asyncio.Runner, client: aiomqtt.Client) -> None:
        self.ended = False
        self._runner = runner
        self._client = client

    def take(self, patience: float = PATIENCE) -> Received:
        try:
            message = self._runner.run(self._next(patience))
        except TimeoutError:
            raise NothingCame from None
        assert isinstance(message.payload, bytes)
        said = what_it_says(message.properties)
        return Received(str(message.topic), message.payload, message.qos, message.retain, said)

    async def _next(self, patience: float) -> aiomqtt.Message:
        return await asyncio.wait_for(anext(self._client.messages), patience)

    def farewell(self) -> int:
        try:
            message = self._runner.run(self._next(PATIENCE))
        except aiomqtt.MqttError as error:
            assert isinstance(error.__cause__, aiomqtt.MqttCodeError)
            assert isinstance(error.__cause__.rc, ReasonCode)
            return error.__cause__.rc.value
        raise AssertionError(f"a message instead: {message}")

    def leave(self) -> None:
        self.ended = True
        self._runner.run(self._exit())
        self._runner.close()

    def die(self) -> None:
        self.ended = True
        connection = self._client._client.socket()  # it has no public way to leave without a DISCONNECT
        while not isinstance(connection, socket.socket):
            connection = connection._socket  # type: ignore[union-attr]  # paho's own wrapper of a WebSocket
        connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(aiomqtt.MqttError):
            self._runner.run(self._exit())
        self._runner.close()

    async def _exit(self) -> None:
        await self._client.__aexit__(None, None, None)


class Aiomqtt:
    def __init__(self, version: aiomqtt.ProtocolVersion) -> None:
        self._version = version

    def listen(self, address: Address, topic_filter: str, wish: Wish) -> AiomqttListener:
        runner = asyncio.Runner()
        client = runner.run(self._listen(address, topic_filter, wish))
        return AiomqttListener(runner, client)

    async def _listen(self, address: Address, topic_filter: str, wish: Wish) -> aiomqtt.Client:
        last_words = None if wish.will is None else aiomqtt.Will(wish.will.topic, wish.will.payload, qos=1)
        client = self._client(address, wish.session, last_words)
        await client.__aenter__()
        await client.subscribe(topic_filter, wish.qos, properties=subscription(wish.identifier))
        return client

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
        async with self._client(address, "", None) as client:
            for payload in payloads:
                await client.publish(topic, payload, qos, retain, publication(said))
                topic = "" if said.alias else topic

    def _client(self, address: Address, session: str, will: aiomqtt.Will | None) -> aiomqtt.Client:
        newest = self._version == aiomqtt.ProtocolVersion.V5
        return aiomqtt.Client(
            HOST,
            address.port,
            identifier=session or None,
            protocol=self._version,
            will=will,
            clean_session=None if newest else not session,
            clean_start=not session if newest else paho.MQTT_CLEAN_START_FIRST_ONLY,
            properties=kept_session() if newest and session else None,
            transport="websockets" if address.websocket else "tcp",
            websocket_path=PATH if address.websocket else None,
            tls_context=address.context(),
            timeout=PATIENCE,
        )
