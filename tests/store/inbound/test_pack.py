# Packs of the inbound backbone: what goes in comes out, and damage is found.
import pytest

from broker.delivery.completion import Completion
from broker.mqtt.packets import V5, V311
from broker.session.message import NEVER, Message
from broker.session.run import Run
from broker.store.durable.pack import DamagedPack
from broker.store.inbound.pack import (
    MOST,
    MOST_BYTES,
    AcceptedPublish,
    PackBuilder,
    accepted_at,
    decode_accepted,
    has_unrepeated,
)
from tests.session.receiver import message

NOW = 1000.0
WALL = 1_800_000_000.25
TOKEN = bytes(range(16))


def run(*payloads: bytes, version: int = V311, topic: bytes = b"t") -> Run:
    section = b"\x00" if version == V5 else b""
    packets = []
    for payload in payloads:
        body = len(topic).to_bytes(2, "big") + topic + section + payload
        packets.append(bytes((0x30, len(body))) + body)
    return Run(
        b"".join(packets), version, len(payloads), topic, sum(map(len, payloads)), max(len(one) for one in packets)
    )


def taken(builder: PackBuilder, now: float = NOW, wall: float = WALL) -> list[AcceptedPublish]:
    return decode_accepted(builder.take(NOW, WALL), now, wall)


def told(publish: AcceptedPublish) -> tuple[object, ...]:
    one = publish.message
    assert one is not None
    return one.topic, one.payload, one.qos, one.retain, one.properties, publish.publisher, publish.retained_at


def test_messages_come_out_as_they_went_in() -> None:
    """Receivers would get another topic, payload, QoS or property than was published."""
    builder = PackBuilder()
    builder.add(Message(b"a", b"1", 0, False, b"", NEVER), "", 0)
    builder.add(Message(b"a", b"2", 1, True, b"\x03\x00\x01x", NEVER), "client", 17)
    builder.add(Message(b"b", b"", 2, False, b"", NEVER), "cli\udcffent", 0)

    assert [
        (b"a", b"1", 0, False, b"", "", 0),
        (b"a", b"2", 1, True, b"\x03\x00\x01x", "client", 17),
        (b"b", b"", 2, False, b"", "cli\udcffent", 0),
    ] == [told(one) for one in taken(builder)]
    assert (0, 0, 0) == (builder.count, builder.publishes, builder.size)


def test_a_token_goes_with_its_message() -> None:
    """A publish that is sent again after a crash would be stored twice."""
    published = message(b"x", 2)
    published.completion = Completion()
    published.completion.token = TOKEN
    builder = PackBuilder()
    builder.add(message(b"w", 2), "", 0)
    builder.add(published, "", 0)
    first, second = taken(builder)

    assert first.message is not None and first.message.completion is None
    assert second.message is not None and second.message.completion is not None
    assert TOKEN == second.message.completion.token


@pytest.mark.parametrize("version", [V311, V5])
def test_runs_keep_their_place_among_messages(version: int) -> None:
    """Receivers would get messages of one publisher in another order."""
    builder = PackBuilder()
    builder.add(message(b"1", 1), "", 0)
    builder.add_run(run(b"2", b"3", version=version), NOW, WALL)
    builder.add(message(b"4", 1), "", 0)
    assert 4 == builder.publishes
    found = taken(builder)

    payloads: list[bytes] = []
    for one in found:
        payloads += one.run.payloads() if one.run is not None else [one.message.payload if one.message else b"?"]
    assert [b"1", b"2", b"3", b"4"] == payloads
    between = found[1].run
    assert between is not None
    assert (version, 2, b"t", 2) == (between.version, between.count, between.topic, between.payload_bytes)
    assert run(b"2", b"3", version=version).longest == between.longest
    assert [1, 2, 1] == [one.count() for one in found]


def test_time_that_passes_counts_against_the_expiry() -> None:
    """A message that has waited in Kafka would be delivered although it has expired, or with too long an expiry."""
    builder = PackBuilder()
    builder.add(message(b"x", 1, expires=NOW + 10.0), "", 0)
    body = builder.take(NOW, WALL)
    (soon,) = decode_accepted(body, 5000.0, WALL + 4.0)
    (late,) = decode_accepted(body, 5000.0, WALL + 11.0)

    assert soon.message is not None and late.message is not None
    assert 5006.0 == pytest.approx(soon.message.expires, abs=0.01)
    assert (False, True) == (soon.message.expired(5000.0), late.message.expired(5000.0))
    builder.add(message(b"x", 1), "", 0)
    (lasting,) = decode_accepted(builder.take(NOW, WALL), 5000.0, WALL)
    assert lasting.message is not None
    assert (NEVER, NEVER) == (lasting.message.expires, lasting.message.ends)


def test_a_pack_says_when_it_was_accepted_and_whether_it_may_be_repeated() -> None:
    """Nobody could say how far behind the node is; or QoS 0 would come twice."""
    builder = PackBuilder()
    builder.add(message(b"x", 1), "", 0)
    without = builder.take(NOW, WALL)
    builder.add(message(b"x", 0), "", 0)
    single = builder.take(NOW, WALL)
    builder.add_run(run(b"x"), NOW, WALL)
    several = builder.take(NOW, WALL)

    assert WALL == accepted_at(without)
    assert [False, True, True] == [has_unrepeated(body) for body in (without, single, several)]


def test_a_pack_has_a_size() -> None:
    """A burst would be one record that is larger than Kafka takes."""
    builder = PackBuilder()
    for _ in range(MOST):
        assert builder.has_room(1)
        builder.add(message(b"x", 1), "", 0)
    assert not builder.has_room(1)
    builder.take(NOW, WALL)
    assert builder.has_room(2 * MOST_BYTES)
    builder.add(message(bytes(MOST_BYTES // 2), 1), "", 0)
    assert builder.has_room(MOST_BYTES // 4)
    assert not builder.has_room(MOST_BYTES // 2)


def full() -> bytes:
    builder = PackBuilder()
    published = message(b"payload", 2)
    published.completion = Completion()
    published.completion.token = TOKEN
    builder.add(published, "client", 5)
    builder.add_run(run(b"x"), NOW, WALL)
    return builder.take(NOW, WALL)


def test_what_is_cut_off_is_damaged() -> None:
    """A worker would fail, or take part of a message for a whole one."""
    body = full()
    whole_parts = {len(body)}
    at = 10
    while at < len(body):  # behind a part a pack may end
        whole_parts.add(at)
        at += 5 + int.from_bytes(body[at + 1 : at + 5], "big")
    for size in range(len(body)):
        if size not in whole_parts:
            with pytest.raises(DamagedPack):
                decode_accepted(body[:size], NOW, WALL)
    assert 2 == len(decode_accepted(body, NOW, WALL))


def test_what_is_changed_raises_nothing_else() -> None:
    """One bad byte in Kafka would stop a partition."""
    body = full()
    for at in range(len(body)):
        for value in (0x00, 0x7F, 0xFF, body[at] ^ 0x01):
            changed = body[:at] + bytes((value,)) + body[at + 1 :]
            try:
                decode_accepted(changed, NOW, WALL)
                accepted_at(changed)
                has_unrepeated(changed)
            except DamagedPack:
                pass
