# paho-mqtt: threads and callbacks.
import queue
import socket
import threading
from collections.abc import Sequence

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.system.addresses import PATH, Address
from tests.system.processes import HOST, PATIENCE
from tests.system.programs.interface import SESSION_SECONDS, SILENT, NothingCame, Received, Said, Wish


def kept_session() -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = SESSION_SECONDS
    return properties


def subscription(identifier: int) -> Properties | None:
    if not identifier:
        return None
    properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
    properties.SubscriptionIdentifier = identifier
    return properties


def publication(said: Said) -> Properties | None:
    if said == SILENT:
        return None
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if said.content_type:
        properties.ContentType = said.content_type
    if said.response_topic:
        properties.ResponseTopic = said.response_topic
    if said.correlation:
        properties.CorrelationData = said.correlation
    if said.user:
        properties.UserProperty = list(said.user)
    if said.expiry:
        properties.MessageExpiryInterval = said.expiry
    if said.alias:
        properties.TopicAlias = said.alias
    return properties


def what_it_says(properties: Properties | None) -> Said:
    told = {} if properties is None else vars(properties)
    return Said(
        told.get("ContentType", ""),
        told.get("ResponseTopic", ""),
        told.get("CorrelationData", b""),
        tuple(tuple(pair) for pair in told.get("UserProperty", [])),
        told.get("MessageExpiryInterval", 0),
        told.get("TopicAlias", 0),
        tuple(told.get("SubscriptionIdentifier", [])),
    )


class PahoListener:
    def __init__(self, client: paho.Client) -> None:
        self.ended = False
        self._client = client
        self._messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._farewells: queue.Queue[int] = queue.Queue()
        client.on_message = lambda _client, _data, message: self._messages.put(message)
        client.on_disconnect = lambda _client, _data, _flags, reason, _properties: self._farewells.put(reason.value)

    def take(self, patience: float = PATIENCE) -> Received:
        try:
            message = self._messages.get(timeout=patience)
        except queue.Empty:
            raise NothingCame from None
        said = what_it_says(message.properties)
        return Received(message.topic, bytes(message.payload), message.qos, message.retain, said)

    def farewell(self) -> int:
        return self._farewells.get(timeout=PATIENCE)

    def leave(self) -> None:
        self.ended = True
        self._client.disconnect()
        self._client.loop_stop()

    def die(self) -> None:
        self.ended = True
        connection = self._client.socket()
        while not isinstance(connection, socket.socket):
            connection = connection._socket  # type: ignore[union-attr]  # paho's own wrapper of a WebSocket
        connection.shutdown(socket.SHUT_RDWR)
        self._client.loop_stop()


class Paho:
    def __init__(self, version: MQTTProtocolVersion) -> None:
        self._version = version

    def listen(self, address: Address, topic_filter: str, wish: Wish) -> PahoListener:
        client = self._client(address, wish.session)
        if wish.will is not None:
            client.will_set(wish.will.topic, wish.will.payload, qos=1)
        listener = PahoListener(client)
        subscribed = threading.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        self._connect(client, address, kept=bool(wish.session))
        client.subscribe(topic_filter, wish.qos, properties=subscription(wish.identifier))
        assert subscribed.wait(PATIENCE), "no SUBACK"
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
        client = self._client(address, "")
        self._connect(client, address, kept=False)
        handed = []
        for payload in payloads:
            handed.append(client.publish(topic, payload, qos, retain, publication(said)))
            topic = "" if said.alias else topic
        for message in handed:
            message.wait_for_publish(PATIENCE)
            assert message.is_published(), "no acknowledgement"
        client.disconnect()
        client.loop_stop()

    def _client(self, address: Address, session: str) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            session,
            None if self._version == MQTTProtocolVersion.MQTTv5 else not session,
            protocol=self._version,
            transport="websockets" if address.websocket else "tcp",
            reconnect_on_failure=False,
        )
        client.ws_set_options(PATH)
        if address.encrypted:
            client.tls_set_context(address.context())
        return client

    def _connect(self, client: paho.Client, address: Address, kept: bool) -> None:
        connected = threading.Event()
        client.on_connect = lambda *_: connected.set()
        if self._version == MQTTProtocolVersion.MQTTv5:
            client.connect(HOST, address.port, clean_start=not kept, properties=kept_session() if kept else None)
        else:
            client.connect(HOST, address.port)
        client.loop_start()
        assert connected.wait(PATIENCE), "no CONNACK"
