# Readers that stop: what they cost the others, and what becomes of what they were owed.
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, Publish
from tests.system import scene
from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient
from tests.system.scene import StartWeir
from tests.tools.bench.contenders import build_tool

pytestmark = [pytest.mark.weir_only("its limits are others"), pytest.mark.slow]

PAYLOAD = bytes(10_000)
MESSAGES = 2000  # 20 MB: far more than the kernel hides
FEW = 20  # at once: what a quick reader takes while they are sent
RECEIVE_BUFFER = 64 * 1024  # bytes: left to itself, the kernel keeps 1 to 5 MB of a reader's in one
GONE = 3.0  # seconds after which a reader that takes nothing is closed


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def reader(weir: BrokerProcess, stack: ExitStack, name: str, filter: str, qos: int = 0) -> RawClient:
    client = stack.enter_context(closing(RawClient(weir.port, V311)))
    client.connect(name)
    client.subscribe(filter, qos=qos)
    return client


def numbered(number: int) -> bytes:
    return b"%d " % number + PAYLOAD


def publish_all(weir: BrokerProcess, stack: ExitStack, topic: str, quick: RawClient, qos: int) -> list[int]:
    """MESSAGES go to *topic*, in blocks of FEW; which of them *quick* gets meanwhile."""
    publisher = stack.enter_context(closing(RawClient(weir.port, V311)))
    publisher.connect("publisher")
    got: list[int] = []
    for first in range(0, MESSAGES, FEW):
        block = [Publish(topic.encode(), numbered(first + n), qos, packet_id=n + 1 if qos else 0) for n in range(FEW)]
        publisher.socket.sendall(b"".join(encode(packet, V311) for packet in block))
        publisher.ping() if not qos else [publisher.receive() for _ in block]
        got += taken(quick)
    return got


def taken(client: RawClient) -> list[int]:
    """What has come to *client*, acknowledged."""
    found = []
    client.send(scene.PING)
    while isinstance(packet := client.receive(), Publish):
        client.acknowledge(packet)
        found.append(int(packet.payload.split(b" ", 1)[0]))
    return found


def dropped(weir: BrokerProcess) -> dict[str, int]:
    found: dict[str, int] = scene.totals(weir)["reasons"]["dropped"]
    return found


def test_a_reader_that_stops_is_skipped_counted_and_closed(start_weir: StartWeir, stack: ExitStack) -> None:
    """One reader that hangs would fill the memory, hold up the others, or be gone without a word."""
    weir = scene.begin(start_weir, node__workers=1, delivery__slow_consumer_timeout=f"{GONE}s")
    reader(weir, stack, "stopped", "all")
    quick = reader(weir, stack, "quick", "all")
    got = publish_all(weir, stack, "all", quick, 0)

    assert list(range(MESSAGES)) == got
    scene.until(lambda: len(dropped(weir)) > 0, "nothing was skipped")
    skipped = dropped(weir)
    assert ["not_writable"] == list(skipped), skipped
    assert 0 < sum(skipped.values()) < MESSAGES
    weir.wait_for_log('"slow_consumer"')


def test_a_shared_group_moves_on_from_a_member_that_stops(start_weir: StartWeir, stack: ExitStack) -> None:
    """A share of the messages would wait for a reader that hangs, and be lost with it."""
    weir = scene.begin(start_weir, delivery__slow_consumer_timeout=f"{GONE}s")
    stopped = reader(weir, stack, "stopped", "$share/group/work", 1)
    assert isinstance(stopped.socket, socket.socket)
    stopped.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    quick = reader(weir, stack, "quick", "$share/group/work", 1)
    got = publish_all(weir, stack, "work", quick, 1)
    weir.wait_for_log('"slow_consumer"')
    in_time = len(got)

    def all_accounted_for() -> bool:
        got.extend(taken(quick))  # what waited for the other one and was not sent
        return len(got) + sum(dropped(weir).values()) >= MESSAGES

    scene.until(all_accounted_for, "some messages are neither here nor counted")

    # What it had been sent and did not acknowledge stays with its session (4.8.2), and ends with that.
    assert len(got) == len(set(got))
    assert {"session_ended": MESSAGES - len(got)} == dropped(weir)
    assert in_time > 3 / 4 * MESSAGES  # while it hung: they took turns until it was full


@pytest.fixture(scope="module")
def mqload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tool("mqload", tmp_path_factory.mktemp("tools"), tls=False)


@pytest.mark.faults
def test_one_subscriber_of_ten_thousand_a_second_under_low_watermarks(start_weir: StartWeir, mqload: Path) -> None:
    """A busy reader would be taken for a slow one, and lose what it could have had."""
    weir = scene.begin(start_weir, delivery__high_watermark="64KiB", delivery__low_watermark="32KiB")
    options = ["--pattern", "fanin", "--pubs", "20", "--subs", "1", "--rate", "10000", "--count", "100000"]
    done = subprocess.run(
        [str(mqload), *options, "--port", str(weir.port), "--payload", "100"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    told: dict[str, Any] = json.loads(done.stdout)

    print({key: told[key] for key in ("received", "expected", "seconds", "p50_us", "p99_us")}, dropped(weir))
    assert (100_000, {}) == (told["received"], dropped(weir))
