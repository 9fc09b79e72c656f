# A short run of the fuzzer, and the fuzzer itself: one that finds nothing has to be one that could.
import secrets
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from broker.mqtt.packets import PUBACK, PUBREC, V5, Ack, Publish, Subscribe
from broker.mqtt.stream import PacketReader
from broker.reasons import ProtocolError
from tests.tools.fuzz.__main__ import report
from tests.tools.fuzz.campaign import LONG, STANDSTILL, Campaign, Outcome
from tests.tools.fuzz.channels import Channel, ChannelEnded, WebSocket, frame, mask
from tests.tools.fuzz.conversations import conversation
from tests.tools.fuzz.inputs import CORPUS, Inputs
from tests.tools.fuzz.loop import Loop
from tests.tools.fuzz.pair import Subscriber
from tests.tools.fuzz.transports import NAMES, Transport
from tests.tools.fuzz.victim import victim

SHORT = 4000  # inputs
SHORTER = 1000
ATTEMPTS = 3  # runs: one in which the machine stands still shows nothing


def ignore(outcome: Outcome) -> None:
    """Nobody watches."""


@pytest.mark.system
@pytest.mark.parametrize(
    ("transport", "seed", "count"),
    [
        pytest.param("tcp", 21, SHORT, marks=pytest.mark.nightly),
        pytest.param("tcp", secrets.randbelow(1 << 32), SHORTER, id="tcp-random"),
        *[pytest.param(name, secrets.randbelow(1 << 32), SHORTER, id=f"{name}-random") for name in NAMES[1:]],
    ],
)
def test_no_input_harms_the_broker_or_the_pair_beside_it(tmp_path: Path, transport: str, seed: int, count: int) -> None:
    """A client could bring the broker down, make it leak descriptors, or lose other clients' messages."""
    for attempt in range(ATTEMPTS):
        with victim(tmp_path / str(attempt), transport) as (broker, way):
            outcome = Campaign(broker, way, Inputs(seed), 0, count).run(ignore)
        print(report(outcome))  # with the seed, which a failure needs
        if not outcome.stood_still:
            break

    assert 0.0 == outcome.stood_still
    assert [] == outcome.failures
    assert count == outcome.inputs
    assert outcome.pair["messages"] > 0


def test_a_conversation_is_mqtt_before_it_is_spoilt() -> None:
    """Inputs would all be refused at their CONNECT, and what is behind never be fuzzed."""
    random = Random(1)
    for _ in range(200):
        said = conversation(random)
        reader = PacketReader(0, 1 << 20)

        packets = list(reader.feed(b"".join(said.packets)))

        assert len(said.packets) == len(packets)
        assert said.version == reader.version


def test_conversations_have_the_shapes_that_were_found_to_harm() -> None:
    """A run would not try what the broker has been hardened against: deep trees, wrong answers, DUP in 3.1."""
    random = Random(1)
    deep = wrong = again = 0
    for _ in range(CORPUS):
        said = conversation(random)
        again += any(packet[0] in (0x18, 0x6A, 0x8A, 0xAA) for packet in said.packets)
        packets = list(PacketReader(0, 1 << 20).feed(b"".join(said.packets)))
        deep += any(isinstance(packet, Subscribe) and len(packet.filters) > 4 for packet in packets)
        for publish, answer in pairwise(packets):
            if isinstance(publish, Publish) and isinstance(answer, Ack) and publish.payload == b"own":
                wrong += answer.kind != (PUBACK if publish.qos == 1 else PUBREC)

    assert min(deep, wrong, again) > 20


def test_most_inputs_get_beyond_their_connect_and_many_break_the_rules() -> None:
    """The mutations would be so wild, or so tame, that nothing is found."""
    inputs = Inputs(1)
    beyond = broken = 0
    for number in range(1000):
        reader = PacketReader(0, 1 << 20)
        read = 0
        try:
            for _ in reader.feed(b"".join(inputs[number].pieces)):
                read += 1
        except ProtocolError:
            broken += 1
        beyond += read > 1

    assert beyond > 500
    assert broken > 150


def test_an_input_follows_from_its_seed_and_its_number() -> None:
    """What a run has found could not be repeated."""
    assert [Inputs(5)[n] for n in (0, 7, 12345)] == [Inputs(5)[n] for n in (0, 7, 12345)]
    assert Inputs(5)[7] != Inputs(6)[7]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def subscriber(told: list[str]) -> Subscriber:
    """One that expects message 0, and has no connection: its answers go nowhere."""
    client = Listening(Loop(), Transport("tcp", 0), "c", V5, {b"t/1": 1, b"t/2": 2}, True, told.append)
    return client


class Listening(Subscriber):
    def say(self, *packets: object) -> None:
        pass


def numbers(subscriber: Subscriber, qos: int, *sent: int, dup: bool = False) -> None:
    for number in sent:
        subscriber.take(Publish(b"t/%d" % qos, b"%d" % number, qos, False, dup, number + 1))


@pytest.mark.parametrize("qos", [1, 2])
def test_the_pair_sees_a_loss(subscriber: Subscriber, told: list[str], qos: int) -> None:
    """A lost message, or one that overtook another, would go unnoticed."""
    numbers(subscriber, qos, 0, 1, 3)

    assert 1 == len(told)
    assert "3 came too early" in told[0]


def test_the_pair_takes_marked_duplicates_at_qos_1_only(subscriber: Subscriber, told: list[str]) -> None:
    """A message delivered twice would go unnoticed, or a lawful repetition be an alarm."""
    numbers(subscriber, 1, 0, 1)
    numbers(subscriber, 1, 0, 1, dup=True)
    assert [] == told

    numbers(subscriber, 1, 1)
    assert 1 == len(told)

    numbers(subscriber, 2, 0)
    subscriber.take(Publish(b"t/2", b"0", 2, False, True, 77))  # not the packet it was: a message of its own
    assert 2 == len(told)


def test_growing_memory_is_a_failure() -> None:
    """A leak would go unnoticed."""
    begun = [50_000 + 200 * n for n in range(50)]  # caches and limits fill
    leaking, steady, short = (Outcome(0, 0, 1_000_000, LONG) for _ in range(3))
    leaking.memory = begun + [60_000 + 30 * n * 1_000_000 // 450 // 1024 for n in range(450)]  # 30 bytes an input
    steady.memory = begun + [60_000 + n * 9 for n in range(450)]
    short.seconds, short.memory = LONG - 1, leaking.memory

    for outcome in (leaking, steady, short):
        outcome.judge_memory()

    assert [1, 0, 0] == [len(outcome.failures) for outcome in (leaking, steady, short)]


def server_frames(*payloads: bytes) -> bytes:
    return b"".join([frame(2, payload, masked=False) for payload in payloads])


def test_the_websocket_client_reads_frames_that_are_cut_anywhere() -> None:
    """The WebSocket runs would lose what the broker says, and blame the broker."""
    payloads = [b"a", b"b" * 200, b"c" * 70_000, b""]
    stream = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n" + server_frames(*payloads)
    client = WebSocket(Channel())

    said = b"".join([client.heard(stream[at : at + 777]) for at in range(0, len(stream), 777)])

    assert b"".join(payloads) == said


def test_the_websocket_client_masks_and_waits_for_the_upgrade() -> None:
    """Servers would refuse it, and the WebSocket runs test nothing but that."""
    client = WebSocket(Channel())
    client.say(b"hello")
    assert client.outgoing().endswith(b"\r\n\r\n")

    client.heard(b"HTTP/1.1 101 x\r\n\r\n")

    head, payload = (wire := client.outgoing())[:2], wire[6:]
    assert b"\x82\x85" == head
    assert b"hello" == mask(payload)


def test_the_websocket_client_sees_a_refusal() -> None:
    """A broker that refuses every upgrade would look as if it served them."""
    with pytest.raises(ChannelEnded, match="404"):
        WebSocket(Channel()).heard(b"HTTP/1.1 404 Not Found\r\n\r\n")


@pytest.mark.parametrize(
    ("memory", "tenths"), [([], []), ([4], [4]), (list(range(9)), list(range(9))), ([5, 7] * 10, [6] * 10)]
)
def test_a_run_of_seconds_has_as_many_tenths_as_it_was_measured(memory: list[int], tenths: list[int]) -> None:
    """A broker that is quick would end the report of a short run with a mistake."""
    assert tenths == Outcome(seed=1, first=0, memory=memory).memory_by_tenths()


def test_a_loop_tells_how_long_it_stood_still() -> None:
    """What a broker lawfully does after its machine stood still would be taken for its mistake."""
    loop = Loop()
    loop.turn(0.0)
    assert loop.longest_pause < STANDSTILL

    loop.now -= 2 * STANDSTILL  # as if the turn before had been so long ago
    loop.turn(0.0)
    assert 2 * STANDSTILL <= loop.longest_pause < 3 * STANDSTILL
    loop.close()
