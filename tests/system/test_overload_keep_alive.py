# Clients that are held back for longer than their keep alive: they cannot be heard, and it is us who do not listen.
import socket
import time
from typing import cast

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, PingReq, Publish
from tests.system import scene
from tests.system.processes import HOST, BrokerProcess
from tests.system.raw import RawClient
from tests.system.scene import StartWeir

pytestmark = [pytest.mark.weir_only("it holds nobody back"), pytest.mark.slow]

KEEP_ALIVE = 2  # seconds; 3 of silence end it
# A publish costs 600 credits, at level 10 a client gets 100 a second: each is held for about 6 s.
# How soon the level gets there is not what these tests are about.
SETTINGS = {"node__workers": 1, "overload__cost__publish": 600, "overload__position_gain": 2.0}
MESSAGES = 2
PATIENCE = 40.0
READ = 64 * 1024  # bytes that are read of a client that is held back
LARGE = encode(Publish(b"held", bytes(1024 * 1024 - 100)), V311) + encode(PingReq(), V311)


def overloaded(start_weir: StartWeir, **settings: object) -> BrokerProcess:
    """A node at level 10."""
    weir = scene.begin(start_weir, **SETTINGS, **settings)
    scene.inject(weir, 0, "memory", 2.0, 120.0)
    scene.until(lambda: scene.levels(weir) == [10], "it is not overloaded")
    return weir


def silent_client(weir: BrokerProcess) -> RawClient:
    """Has published more than it has credits for, and says no more."""
    client = RawClient(weir.port, V311)
    client.connect("silent", keep_alive=KEEP_ALIVE)
    client.socket.sendall(b"".join(encode(Publish(b"held", b"%d" % n), V311) for n in range(MESSAGES)))
    return client


@pytest.mark.nightly  # 20 s; tests/overload and tests/protocol have the clock in hand
def test_who_is_held_back_stays_connected(start_weir: StartWeir) -> None:
    """Overload protection would throw out those that it slows down."""
    weir = overloaded(start_weir)
    reader = RawClient(weir.port)
    reader.connect("reader")
    reader.subscribe("held")
    reader.socket.settimeout(PATIENCE)
    client = silent_client(weir)
    began = time.monotonic()
    payloads = [reader.take().payload for _ in range(MESSAGES)]
    took = time.monotonic() - began
    client.ping()

    assert [b"%d" % n for n in range(MESSAGES)] == payloads
    assert took > 2 * 1.5 * KEEP_ALIVE  # or nobody was held for as long as this is about
    client.close()
    reader.close()


def test_with_strict_it_is_closed_as_if_it_had_fallen_silent(start_weir: StartWeir) -> None:
    """Who set `strict`, as others document it, would find connections that should be gone."""
    weir = overloaded(start_weir, overload__keepalive_while_throttled="strict")
    client = silent_client(weir)
    client.socket.settimeout(PATIENCE)
    assert [] == client.expect_end()

    scene.until(lambda: len(scene.lines(weir, "client_closed")) > 0, "nobody was closed")
    (line,) = [line for line in scene.lines(weir, "client_closed") if line["client"] == "silent"]
    assert "KEEP_ALIVE_TIMEOUT" == line["reason"].upper()
    client.close()


def test_pings_of_who_is_held_back_are_answered(start_weir: StartWeir) -> None:
    """Clients would give up: they ping, and take us for dead when no answer comes."""
    weir = overloaded(start_weir)
    client = silent_client(weir)
    for _ in range(3):
        time.sleep(1.0)  # it is a ping after the client was held that matters
        client.ping()
    client.close()


def test_who_has_said_more_than_we_read_is_not_answered_and_stays(start_weir: StartWeir) -> None:
    """What lies before a ping in the kernel would be read only to throw the client out, or all be kept in memory."""
    weir = overloaded(start_weir)
    client = silent_client(weir)
    client.socket.settimeout(0.0)
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += cast(socket.socket, client.socket).send(LARGE)
    end = time.monotonic() + 3 * KEEP_ALIVE
    while time.monotonic() < end:
        assert scene.ask(weir, "client", client="silent")["connected"]
        time.sleep(0.1)  # between two looks at a process that is not ours

    assert sent > 2 * READ
    assert scene.totals(weir)["counters"]["bytes_received"] < 2 * READ
    with pytest.raises(BlockingIOError):
        client.socket.recv(1)
    client.close()


@pytest.mark.nightly  # 20 s; tests/overload and tests/protocol have the clock in hand
def test_a_client_that_pings_does_not_give_up(start_weir: StartWeir) -> None:
    """The same with a client that does: paho closes when a ping is not answered within the keep alive."""
    weir = overloaded(start_weir)
    ended: list[str] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="paho")
    client.on_disconnect = lambda *facts: ended.append(str(facts[3]))
    client.connect(HOST, weir.port, keepalive=KEEP_ALIVE)
    client.loop_start()
    handles = [client.publish("held", b"%d" % n, qos=1) for n in range(MESSAGES)]
    for handle in handles:
        handle.wait_for_publish(PATIENCE)

    assert [True] * MESSAGES == [handle.is_published() for handle in handles]
    assert [] == ended
    client.disconnect()
    client.loop_stop()
