# What the fuzzer has found below MQTT, as the smallest input that shows it.
import json
import socket
import time
from collections.abc import Iterator

import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, Connect, PingReq
from tests.system.processes import HOST, PATIENCE, BrokerProcess
from tests.system.raw import RawClient
from tests.tools.fuzz.campaign import descriptors
from tests.tools.fuzz.channels import BINARY, PING, TEXT, frame, request
from tests.tools.fuzz.transports import Transport
from tests.tools.fuzz.victim import victim

pytestmark = pytest.mark.system
HELLO = frame(BINARY, encode(Connect(V311, "found"), V311))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Transport]]:
    with victim(tmp_path_factory.mktemp("victim"), "ws") as both:
        yield both


def say(port: int, *said: bytes) -> list[bytes]:
    """Say one after the other, each but the last when the former was answered, then no more; the answers."""
    with socket.create_connection((HOST, port), timeout=PATIENCE) as client:
        answers = []
        for data in said:
            client.sendall(data)
            answers.append(client.recv(65536))
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
    return answers


def own_mistakes(broker: BrokerProcess) -> list[str]:
    lines = map(json.loads, broker.log_text().splitlines())
    return [line["event"] for line in lines if line["event"] == "internal_error"]


def serve_another(broker: BrokerProcess) -> None:
    """Whatever was begun before has been logged when this returns."""
    client = RawClient(broker.port)
    client.connect("another")
    client.ping()
    client.disconnect()


def test_a_websocket_that_ends_within_a_packet_is_let_go(served: tuple[BrokerProcess, Transport]) -> None:
    """Each such client would cost a descriptor and a whole processor, for ever."""
    broker, transport = served
    serve_another(broker)
    before = descriptors(broker.worker_pid)

    half = encode(PingReq(), V311) + b"\x30\x7f\x00"
    assert b"" != say(transport.port, request(), HELLO, frame(BINARY, half))[2]

    serve_another(broker)
    deadline = time.monotonic() + PATIENCE
    while descriptors(broker.worker_pid) > before:  # who was answered last may linger
        assert time.monotonic() < deadline, "a descriptor is never given back"
        time.sleep(0.02)


def test_a_request_whose_headers_are_no_text_is_the_clients_mistake(served: tuple[BrokerProcess, Transport]) -> None:
    """Anybody could fill the log with tracebacks, and nobody would look at them any more."""
    broker, transport = served

    say(transport.port, request().replace(b"Host: local", b"Host: \xe8\xf1"))

    serve_another(broker)
    assert [] == own_mistakes(broker)


def test_pings_while_the_broker_closes_are_no_mistake(served: tuple[BrokerProcess, Transport]) -> None:
    """Anybody could fill the log with tracebacks, and nobody would look at them any more."""
    broker, transport = served

    say(transport.port, request(), HELLO, frame(TEXT, b"no MQTT") + frame(PING, b"are you there?") * 20)

    serve_another(broker)
    assert [] == own_mistakes(broker)
