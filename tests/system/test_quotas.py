# Over quota, by QoS and version, as clients see it: QoS 0 is dropped, 3.x waits, and 5.0 is told to come again.
#
# Each client may publish BURST messages at once, and then one a second; it publishes SENT. The client is paho. It shows
# its user nothing of a PUBREC, and goes on with PUBREL whatever that says: what it got is looked at on its way in.
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from secrets import token_hex
from typing import Final

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode

from broker.mqtt.decode import decode
from broker.mqtt.packets import PUBACK, PUBREC, Ack
from broker.mqtt.properties import REASON_STRING, USER_PROPERTY
from tests.system.conftest import RUNNING, launch_weir, stop_and_check
from tests.system.processes import HOST, PATIENCE, BrokerProcess, free_port

pytestmark = pytest.mark.weir_only("its quotas")

BURST: Final = 5
SENT: Final = 8
QUOTA: Final = "5:5"
REASON: Final = "quota_session_messages"
OVER: Final = 0x97

Reader = queue.Queue[bytes]
V31, V311 = MQTTProtocolVersion.MQTTv31, MQTTProtocolVersion.MQTTv311


class Publisher(paho.Client):
    """A paho client that is connected, and tells of each acknowledgement."""

    def __init__(self, port: int, client_id: str, version: MQTTProtocolVersion) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id, protocol=version, reconnect_on_failure=False)
        self.told: queue.Queue[Ack] = queue.Queue()
        self.ended: queue.Queue[ReasonCode] = queue.Queue()
        connected: queue.Queue[ReasonCode] = queue.Queue()
        self.on_connect = lambda _client, _data, _flags, reason, _properties: connected.put(reason)
        self.on_disconnect = lambda _client, _data, _flags, reason, _properties: self.ended.put(reason)
        self.connect(HOST, port)
        self.loop_start()
        assert 0 == connected.get(timeout=PATIENCE).value

    def _handle_pubackcomp(self, cmd: str) -> MQTTErrorCode:
        if cmd == "PUBACK":
            self._tell(PUBACK)
        return super()._handle_pubackcomp(cmd)  # type: ignore[arg-type]

    def _handle_pubrec(self) -> MQTTErrorCode:
        self._tell(PUBREC)
        return super()._handle_pubrec()

    def _tell(self, kind: int) -> None:
        data = bytes(self._in_packet["packet"])
        answer = decode(kind << 4, data, 0, len(data), int(self._protocol))
        assert isinstance(answer, Ack)
        self.told.put(answer)

    def answer(self) -> Ack:
        return self.told.get(timeout=PATIENCE)

    def leave(self) -> None:
        self.disconnect()
        self.loop_stop()
        self._reset_sockets()  # which it leaves to the collector, and that may lose them unclosed


@pytest.fixture(scope="module")
def admin() -> int:
    return free_port()


@pytest.fixture(scope="module")
def weir(admin: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings: dict[str, object] = {
        "node.workers": 2,
        "quotas.session.incoming_messages": QUOTA,
        "quotas.reserve": 0,
        "admin.enabled": "true",
        "admin.port": admin,
    }
    process = launch_weir(free_port(), tmp_path_factory.mktemp("quotas"), settings)
    RUNNING.append(process)
    yield process
    stop_and_check(process)


@pytest.fixture
def reader(weir: BrokerProcess, name: str) -> Iterator[Reader]:
    """The payloads that are published to *name*, as they come."""
    client = Publisher(weir.port, "", MQTTProtocolVersion.MQTTv5)
    came: Reader = queue.Queue()
    subscribed = threading.Event()
    client.on_message = lambda _client, _data, message: came.put(bytes(message.payload))
    client.on_subscribe = lambda *_: subscribed.set()
    client.subscribe(name, 2)
    assert subscribed.wait(PATIENCE)
    yield came
    client.leave()


@pytest.fixture
def connect(weir: BrokerProcess) -> Iterator[Callable[..., Publisher]]:
    """Connects publishers, who leave after the test."""
    made: list[Publisher] = []

    def publisher(version: MQTTProtocolVersion) -> Publisher:
        made.append(Publisher(weir.port, token_hex(8), version))  # quotas go by it, and 3.1 has 23 characters for it
        return made[-1]

    yield publisher
    for one in made:
        one.leave()


@pytest.fixture
def counted(admin: int) -> Callable[[str], float]:
    """What Prometheus is told of how often something of that name was done because of the quota."""

    def read(name: str) -> float:
        with socket.create_connection((HOST, admin), timeout=PATIENCE) as connection:
            connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            lines = connection.makefile("rb").read().decode().splitlines()
        found = [line for line in lines if line.startswith(f'weir_{name}_total{{reason="{REASON}"}} ')]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    return read


def take(reader: Reader, count: int) -> list[bytes]:
    return [reader.get(timeout=PATIENCE) for _ in range(count)]


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # figures are told each second, and nobody tells when


@pytest.mark.parametrize("version", [V31, V311, MQTTProtocolVersion.MQTTv5])
def test_qos_0_over_quota_is_dropped_and_its_client_goes_on(
    reader: Reader,
    connect: Callable[..., Publisher],
    counted: Callable[[str], float],
    name: str,
    version: MQTTProtocolVersion,
) -> None:
    """It would be delivered beyond the quota, or its client be held back or closed for it."""
    dropped = counted("messages_dropped")
    publisher = connect(version)
    for number in range(SENT):
        publisher.publish(name, b"%d" % number)
    got = take(reader, BURST)
    wait_for(lambda: counted("messages_dropped") - dropped >= 1)
    while got[-1] != b"late":  # what it publishes when there is room again
        publisher.publish(name, b"late")
        with suppress(queue.Empty):
            got.append(reader.get(timeout=0.1))

    assert [b"%d" % number for number in range(BURST)] == got[:BURST]
    assert len([payload for payload in got if payload != b"late"]) < SENT
    assert publisher.is_connected() and publisher.ended.empty()


@pytest.mark.parametrize("version", [V31, V311])
@pytest.mark.parametrize("qos", [1, 2])
def test_qos_1_and_2_of_3_wait_and_all_arrive(
    reader: Reader,
    connect: Callable[..., Publisher],
    counted: Callable[[str], float],
    name: str,
    version: MQTTProtocolVersion,
    qos: int,
) -> None:
    """What 3.x believes to be delivered would be lost, or nothing hold it to the quota."""
    paused = counted("client_pauses")
    publisher = connect(version)
    began = time.monotonic()
    handed = [publisher.publish(name, b"%d" % number, qos) for number in range(SENT)]
    got = take(reader, SENT)
    took = time.monotonic() - began
    for message in handed:
        message.wait_for_publish(PATIENCE)

    assert [b"%d" % number for number in range(SENT)] == got
    assert all(message.is_published() for message in handed)
    assert took >= SENT - BURST  # a second for each that was over; sooner would be over the quota
    assert [PUBACK if qos == 1 else PUBREC] * SENT == [publisher.answer().kind for _ in handed]
    assert publisher.is_connected() and publisher.ended.empty()
    wait_for(lambda: counted("client_pauses") > paused)


@pytest.mark.parametrize("qos", [1, 2])
def test_qos_1_and_2_of_5_are_refused_with_when_to_come_again(
    reader: Reader, connect: Callable[..., Publisher], counted: Callable[[str], float], name: str, qos: int
) -> None:
    """Who can be told would wait, or be told nothing that it could go by; or what was refused be delivered."""
    refused = counted("publishes_refused")
    publisher = connect(MQTTProtocolVersion.MQTTv5)
    for number in range(SENT):
        publisher.publish(name, b"%d" % number, qos)
    answers = [publisher.answer() for _ in range(SENT)]
    over = [answer for answer in answers if answer.code == OVER]
    accepted = [b"%d" % number for number, answer in enumerate(answers) if answer.code == 0]

    assert {PUBACK if qos == 1 else PUBREC} == {answer.kind for answer in answers}
    assert SENT == len(over) + len(accepted)
    assert [b"%d" % number for number in range(BURST)] == accepted[:BURST] and over
    for answer in over:
        assert f"the client published more messages than its quota allows ({QUOTA})" == answer.properties[REASON_STRING]
        assert 1 <= retry_after(answer) <= 1001
    wait_for(lambda: counted("publishes_refused") - refused >= len(over))

    time.sleep(retry_after(over[-1]) / 1000)  # as it was told
    publisher.publish(name, b"late", qos)
    assert 0 == publisher.answer().code
    assert [*accepted, b"late"] == take(reader, len(accepted) + 1)
    assert publisher.is_connected() and publisher.ended.empty()


def retry_after(answer: Ack) -> int:
    """Milliseconds."""
    pairs = answer.properties[USER_PROPERTY]
    assert isinstance(pairs, list)
    (pair,) = pairs
    assert isinstance(pair, tuple)
    key, value = pair
    assert "retry-after-ms" == key
    return int(value)
