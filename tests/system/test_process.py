# The process: how it starts, what it says of itself, how it ends.
import signal
import socket
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from broker.mqtt.packets import V5, V311, Disconnect
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.system.processes import (
    HOST,
    PATIENCE,
    BrokerProcess,
    free_port,
    packages,
    refused_start,
    weir_command,
    weir_environment,
)
from tests.system.raw import RawClient

Dial = Callable[..., RawClient]
StartWeir = Callable[..., BrokerProcess]
SHUTTING_DOWN = 0x8B


def refused(port: int, folder: Path, **settings: object) -> str:
    """The sentence that `weir start` refuses these settings with."""
    by_key = {key.replace("__", "."): value for key, value in settings.items()}
    return refused_start(port, folder, by_key, packages())


def test_the_version_is_told(dial: Dial, name: str) -> None:
    """Monitoring could not tell which broker it looks at."""
    client = dial(V5)
    client.connect(name)

    ahead = client.subscribe("$SYS/broker/version")

    message = (ahead or [client.take()])[0]
    assert message.retain
    assert b"version" in message.payload or message.payload.startswith(b"weir ")


def test_wildcards_do_not_show_what_begins_with_a_dollar(dial: Dial, name: str) -> None:
    """Who subscribes to everything would get our statistics as well [MQTT-4.7.2-1]."""
    client = dial(V5)
    client.connect(name)

    ahead = client.subscribe("#")

    client.publish(f"$own/{name}", b"hidden")
    client.publish(name, b"end")
    assert not [m.topic for m in ahead + client.take_until(b"end") if m.topic.startswith(b"$")]


@pytest.mark.weir_only("2.0.11 says nothing")
def test_sigterm_tells_version_5_clients_and_ends_with_0(start_weir: StartWeir, dial: Dial, name: str) -> None:
    """Clients would take a planned stop for a broken network, supervisors for a crash."""
    weir = start_weir({"drain.timeout": 1})
    new, old = dial(V5, port=weir.port), dial(V311, port=weir.port)
    new.connect(f"{name}-new", properties={SESSION_EXPIRY_INTERVAL: 300})
    old.connect(f"{name}-old")

    assert 0 == weir.terminate()

    assert [SHUTTING_DOWN] == [packet.code for packet in new.expect_end() if isinstance(packet, Disconnect)]
    assert [] == old.expect_end()


@pytest.mark.weir_only("a matter of `drain.timeout`")
def test_sigterm_with_a_half_sent_packet_ends_with_0(start_weir: StartWeir, dial: Dial, name: str) -> None:
    """One client in the middle of a packet could keep the broker from stopping."""
    weir = start_weir({"drain.timeout": "500ms"})
    client = dial(V5, port=weir.port)
    client.connect(name)
    client.socket.sendall(b"\x30\x7f\x00\x01a")
    dial(V5, port=weir.port)

    assert 0 == weir.terminate()


@pytest.mark.weir_only("a matter of `weir start`")
@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_it_starts_is_heard_when_it_has_started(
    tmp_path: Path, number: int, before: signal.Handlers
) -> None:
    """A stop right after the start would look like a crash, a reload would end the broker."""
    command = weir_command(free_port(), {"log.format": "json"})
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=weir_environment(packages()),
        preexec_fn=partial(signal.signal, number, before),  # as a shell has background jobs ignore SIGINT
    ) as weir:
        assert weir.stderr is not None
        line = weir.stderr.readline()  # it listens, and does not serve yet
        weir.send_signal(number)
        if number == signal.SIGHUP:
            weir.send_signal(signal.SIGTERM)
        rest = weir.stderr.read()

        assert "listening" in line
        assert 0 == weir.wait(PATIENCE), rest
        assert "stopped" in rest


@pytest.mark.weir_only("a matter of `weir start`")
def test_a_port_in_use_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """A second broker would half start, share the port silently, or show a traceback."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]

        sentence = refused(port, tmp_path)

    assert str(port) in sentence
    assert 1 == len(sentence.splitlines()), sentence


@pytest.mark.weir_only("a matter of `weir start`")
def test_bad_configuration_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """A misspelt or impossible setting would be ignored."""
    sentence = refused(free_port(), tmp_path, limits__qos=3)

    assert "limits.qos" in sentence and "3" in sentence
    assert 1 == len(sentence.splitlines()), sentence


@pytest.mark.weir_only("a matter of `weir start`")
def test_the_port_is_free_again_at_once(start_weir: StartWeir, dial: Dial, name: str, tmp_path: Path) -> None:
    """A restart would have to wait until the kernel has forgotten the old connections."""
    weir = start_weir({"drain.timeout": 1})
    client = dial(V5, port=weir.port)
    client.connect(name)
    assert 0 == weir.terminate()
    client.expect_end()

    start_weir({}, port=weir.port)

    dial(V5, port=weir.port).connect(name)
