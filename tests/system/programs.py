# Other people's MQTT clients behind one interface, so that one set of tests speaks through all of them.
#
# A Program publishes, and listens: a Listener exists from the SUBACK on, so what is published after listen() has
# returned must arrive. Nothing here waits longer than PATIENCE, and nothing waits for a fixed time.
import asyncio
import contextlib
import queue
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.system.processes import HOST, PATIENCE

SESSION_SECONDS = 300  # how long a kept session lives on 5.0, where the client says it


class Received(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool


class LastWords(NamedTuple):
    """A will: QoS 1, not retained."""

    topic: str
    payload: bytes


class NothingCame(AssertionError):
    """No message within the time that was given."""


class Listener(Protocol):
    ended: bool  # leave() or die() was called

    def take(self, patience: float = PATIENCE) -> Received:
        """The next message. Raises NothingCame after *patience* seconds."""

    def leave(self) -> None:
        """End with a DISCONNECT."""

    def die(self) -> None:
        """End without one."""


class Program(Protocol):
    def listen(
        self, port: int, topic_filter: str, qos: int = 0, *, session: str = "", will: LastWords | None = None
    ) -> Listener:
        """Subscribe. *session* names a client id whose session is kept; without it nothing outlives the listener."""

    def publish(self, port: int, topic: str, payloads: Sequence[bytes], qos: int = 0, *, retain: bool = False) -> None:
        """Publish on one connection, in order; returns when the last is acknowledged (QoS 0: written)."""


# --- mosquitto_pub and mosquitto_sub


class CommandLineListener:
    def __init__(self, command: Sequence[str]) -> None:
        self.ended = False
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._messages: queue.Queue[bytes] = queue.Queue()
        self._subscribed = threading.Event()
        self._other_lines: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._subscribed.wait(PATIENCE), f"mosquitto_sub has no SUBACK: {self._other_lines}"

    def take(self, patience: float = PATIENCE) -> Received:
        try:
            line = self._messages.get(timeout=patience)
        except queue.Empty:
            raise NothingCame(f"mosquitto_sub says only {self._other_lines}") from None
        _, qos, retain, topic, payload = line.rstrip(b"\n").split(b" ", 4)
        return Received(topic.decode(), payload, int(qos), retain == b"1")

    def leave(self) -> None:
        self._end(signal.SIGTERM)

    def die(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        self.ended = True
        self._process.send_signal(how)
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"got "):
                self._messages.put(line)
            elif line.startswith(b"Subscribed "):
                self._subscribed.set()
            else:
                self._other_lines.append(line)


class CommandLine:
    def __init__(self, version: str) -> None:
        self._version = version

    def listen(
        self, port: int, topic_filter: str, qos: int = 0, *, session: str = "", will: LastWords | None = None
    ) -> CommandLineListener:
        command = ["stdbuf", "-oL"]  # its debug lines tell us of the SUBACK, and would stay in a pipe's buffer
        command += [
            "mosquitto_sub",
            "-h",
            HOST,
            "-p",
            str(port),
            "-V",
            self._version,
            "-t",
            topic_filter,
            "-q",
            str(qos),
        ]
        command += ["-d", "-F", "got %q %r %t %p"]
        if session:
            command += ["-c", "-i", session]
            if self._version == "mqttv5":
                command += ["-x", str(SESSION_SECONDS)]
        if will is not None:
            command += ["--will-topic", will.topic, "--will-payload", will.payload.decode(), "--will-qos", "1"]
        return CommandLineListener(command)

    def publish(self, port: int, topic: str, payloads: Sequence[bytes], qos: int = 0, *, retain: bool = False) -> None:
        command = ["mosquitto_pub", "-h", HOST, "-p", str(port), "-V", self._version, "-t", topic, "-q", str(qos)]
        if retain:
            command.append("-r")
        if list(payloads) == [b""]:
            command.append("-n")
        else:
            command.append("-l")  # a message per line
        lines = b"".join(payload + b"\n" for payload in payloads)
        done = subprocess.run(command, input=lines, capture_output=True, timeout=PATIENCE)
        assert 0 == done.returncode, done.stderr.decode()


# --- paho-mqtt


def kept_session() -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = SESSION_SECONDS
    return properties


class PahoListener:
    def __init__(self, client: paho.Client) -> None:
        self.ended = False
        self._client = client
        self._messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        client.on_message = lambda _client, _data, message: self._messages.put(message)

    def take(self, patience: float = PATIENCE) -> Received:
        try:
            message = self._messages.get(timeout=patience)
        except queue.Empty:
            raise NothingCame from None
        return Received(message.topic, bytes(message.payload), message.qos, message.retain)

    def leave(self) -> None:
        self.ended = True
        self._client.disconnect()
        self._client.loop_stop()

    def die(self) -> None:
        self.ended = True
        connection = self._client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        self._client.loop_stop()


class Paho:
    def __init__(self, version: MQTTProtocolVersion) -> None:
        self._version = version

    def listen(
        self, port: int, topic_filter: str, qos: int = 0, *, session: str = "", will: LastWords | None = None
    ) -> PahoListener:
        client = self._client(session)
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1)
        listener = PahoListener(client)
        subscribed = threading.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        self._connect(client, port, kept=bool(session))
        client.subscribe(topic_filter, qos)
        assert subscribed.wait(PATIENCE), "no SUBACK"
        return listener

    def publish(self, port: int, topic: str, payloads: Sequence[bytes], qos: int = 0, *, retain: bool = False) -> None:
        client = self._client("")
        self._connect(client, port, kept=False)
        for handed in [client.publish(topic, payload, qos, retain) for payload in payloads]:
            handed.wait_for_publish(PATIENCE)
            assert handed.is_published(), "no acknowledgement"
        client.disconnect()
        client.loop_stop()

    def _client(self, session: str) -> paho.Client:
        clean = None if self._version == MQTTProtocolVersion.MQTTv5 else not session
        return paho.Client(
            CallbackAPIVersion.VERSION2, session, clean, protocol=self._version, reconnect_on_failure=False
        )

    def _connect(self, client: paho.Client, port: int, kept: bool) -> None:
        connected = threading.Event()
        client.on_connect = lambda *_: connected.set()
        if self._version == MQTTProtocolVersion.MQTTv5:
            client.connect(HOST, port, clean_start=not kept, properties=kept_session() if kept else None)
        else:
            client.connect(HOST, port)
        client.loop_start()
        assert connected.wait(PATIENCE), "no CONNACK"


# --- aiomqtt


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
        return Received(str(message.topic), message.payload, message.qos, message.retain)

    async def _next(self, patience: float) -> aiomqtt.Message:
        return await asyncio.wait_for(anext(self._client.messages), patience)

    def leave(self) -> None:
        self.ended = True
        self._runner.run(self._exit())
        self._runner.close()

    def die(self) -> None:
        self.ended = True
        connection = self._client._client.socket()  # it has no public way to leave without a DISCONNECT
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(aiomqtt.MqttError):
            self._runner.run(self._exit())
        self._runner.close()

    async def _exit(self) -> None:
        await self._client.__aexit__(None, None, None)


class Aiomqtt:
    def __init__(self, version: aiomqtt.ProtocolVersion) -> None:
        self._version = version

    def listen(
        self, port: int, topic_filter: str, qos: int = 0, *, session: str = "", will: LastWords | None = None
    ) -> AiomqttListener:
        runner = asyncio.Runner()
        client = runner.run(self._listen(port, topic_filter, qos, session, will))
        return AiomqttListener(runner, client)

    async def _listen(
        self, port: int, topic_filter: str, qos: int, session: str, will: LastWords | None
    ) -> aiomqtt.Client:
        last_words = None if will is None else aiomqtt.Will(will.topic, will.payload, qos=1)
        client = self._client(port, session, last_words)
        await client.__aenter__()
        await client.subscribe(topic_filter, qos)
        return client

    def publish(self, port: int, topic: str, payloads: Sequence[bytes], qos: int = 0, *, retain: bool = False) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._publish(port, topic, payloads, qos, retain))

    async def _publish(self, port: int, topic: str, payloads: Sequence[bytes], qos: int, retain: bool) -> None:
        async with self._client(port, "", None) as client:
            for payload in payloads:
                await client.publish(topic, payload, qos, retain)

    def _client(self, port: int, session: str, will: aiomqtt.Will | None) -> aiomqtt.Client:
        newest = self._version == aiomqtt.ProtocolVersion.V5
        return aiomqtt.Client(
            HOST,
            port,
            identifier=session or None,
            protocol=self._version,
            will=will,
            clean_session=None if newest else not session,
            clean_start=not session if newest else paho.MQTT_CLEAN_START_FIRST_ONLY,
            properties=kept_session() if newest and session else None,
            timeout=PATIENCE,
        )


PROGRAMS: dict[str, Program] = {
    "mosquitto-3.1": CommandLine("mqttv31"),
    "mosquitto-3.1.1": CommandLine("mqttv311"),
    "mosquitto-5.0": CommandLine("mqttv5"),
    "paho-3.1": Paho(MQTTProtocolVersion.MQTTv31),
    "paho-3.1.1": Paho(MQTTProtocolVersion.MQTTv311),
    "paho-5.0": Paho(MQTTProtocolVersion.MQTTv5),
    "aiomqtt-3.1.1": Aiomqtt(aiomqtt.ProtocolVersion.V311),
    "aiomqtt-5.0": Aiomqtt(aiomqtt.ProtocolVersion.V5),
}
