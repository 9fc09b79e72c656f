# The form of stored messages: what was stored is read again, and what is no pack is never taken for one.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.session.message import NEVER, GroupMessage, Message
from broker.store.durable.pack import (
    BEHIND,
    HEAD,
    LONG_HEAD,
    PACKET_IDS,
    PLAIN,
    REFERRING,
    DamagedPack,
    Pack,
    Reference,
    StoredMessage,
    add_body,
    decode_pack,
    encode_body,
    encode_pack,
    packet_id_of,
    position_of,
)
from broker.store.durable.sweep import rest_of
from tests.store.durable.older_packs import older

NOW = 1000.0
WALL = 1_800_000_000.25
WRITER_ID = bytes(range(8))
TTL = 7 * 86400  # seconds
ENTRY = 3  # bytes of an element of a long list, beside its own
Fields = tuple[int, bytes, bytes, int, bool, bytes, float]

messages = st.tuples(
    st.sampled_from([b"t", b"device/7/state", "straße".encode()]),
    st.binary(max_size=300),
    st.integers(0, 2),
    st.booleans(),
    st.binary(max_size=20),
    st.sampled_from([NEVER, NOW + 0.5, NOW + 60.0, NOW + 1e6]),
)


def fields(stored: StoredMessage) -> Fields:
    message = stored.message
    kept = message.topic, message.payload, message.qos, message.retain, message.properties
    return stored.position, *kept, message.expires


def stored(position: int, payload: bytes = b"payload", topic: bytes = b"t", expires: float = NEVER) -> StoredMessage:
    return StoredMessage(position, Message(topic, payload, 1, False, b"", expires))


def encoded(
    messages: list[StoredMessage],
    before: int = 0,
    now: float = NOW,
    wall: float = WALL,
    ttl: int = TTL,
    due: int | None = None,
) -> bytes:
    """The pack of *messages*, stored at *wall*; *due*: None: when they end."""
    end = int(wall) + ttl
    return encode_pack(Pack(before, int(wall), end, end if due is None else due, messages), now, wall)


@given(
    first=st.integers(1, 1 << 50),
    before=st.integers(0, 1 << 50),
    rows=st.lists(st.tuples(st.integers(1, 300), messages), min_size=1, max_size=20),
)
def test_what_was_stored_is_read_again(first: int, before: int, rows: list[tuple[int, tuple[object, ...]]]) -> None:
    """A message would come back changed, or under another packet id."""
    position = first - rows[0][0]
    given_messages = []
    for step, row in rows:
        position += step
        given_messages.append(StoredMessage(position, Message(*row)))  # type: ignore[arg-type]
    pack = decode_pack(encoded(given_messages, before), NOW + 50, WALL + 50)

    assert (before, int(WALL)) == (pack.bytes_before, pack.stored_at)
    for ours, read in zip(map(fields, given_messages), map(fields, pack.messages), strict=True):
        assert ours[:-1] == read[:-1]
        assert (ours[-1] == NEVER) == (read[-1] == NEVER)
        assert abs(ours[-1] - read[-1]) <= 0.001  # it is stored in milliseconds


BEFORE_REFERENCES = (  # of a build that knew no references
    "026b49d2006b530c806b49d20507ac020103612f620566697273747e01067365636f6e640726000161000162882700016300"
)


def test_what_an_older_build_stored_is_read() -> None:
    """An update would take each session for damaged."""
    pack = decode_pack(bytes.fromhex(BEFORE_REFERENCES), 1000.0, 1_800_000_000.0)

    assert (300, 1_800_000_000, 1_800_604_800, 1_800_000_005) == (pack.bytes_before, pack.stored_at, pack.end, pack.due)
    assert not pack.may_refer()
    assert [
        (7, b"a/b", b"first", 1, False, b"", NEVER),
        (9, b"a/b", b"second", 2, True, b"&\0\1a\0\1b", 1005.0),
        (10, b"c", b"", 0, False, b"", NEVER),
    ] == list(map(fields, pack.messages))


BEFORE_SHORT_HEADS = (  # of a build that knew DURABLE_FORMAT 3
    "036b49d2006b530c806b49d20507ac02000102030405060781ac0202460203612f62067365636f6e64",
    "046b49d2006b530c806b49d20509ac02000163057468697264",
)


def test_what_a_build_with_whole_times_stored_is_read() -> None:
    """An update would take the sessions of a wide publish for damaged."""
    referring, behind = (decode_pack(bytes.fromhex(data), 1000.0, 1_800_000_000.0) for data in BEFORE_SHORT_HEADS)
    for pack in (referring, behind):
        times = (pack.stored_at, pack.end, pack.due)
        assert (300, 1_800_000_000, 1_800_604_800, 1_800_000_005) == (pack.bytes_before, *times)
        assert pack.may_refer()
    first, second = referring.messages
    assert first.body is not None and (WRITER_ID, 300, 2, 70) == (
        referring.writer,
        first.body.group,
        first.body.index,
        first.message.size,
    )
    assert (8, b"a/b", b"second", 2, False, b"", NEVER) == fields(second)
    assert [(9, b"c", b"third", 0, False, b"", NEVER)] == list(map(fields, behind.messages))


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 300), messages, st.booleans(), st.integers(1, 1 << 40), st.integers(1, 200)),
        min_size=1,
        max_size=20,
    ),
    qos=st.integers(0, 2),
)
def test_a_reference_is_read_again_with_its_body(
    rows: list[tuple[int, tuple[bytes, bytes, int, bool, bytes, float], bool, int, int]], qos: int
) -> None:
    """A message would get the body of another one, or lose its expiry, or end with its pack."""
    position, given_messages = 0, []
    for step, row, refers, group, index in rows:
        position += step
        given_messages.append(StoredMessage(position, Message(*row), Reference(group, index) if refers else None))
    refer = any(each.body for each in given_messages)
    data = encode_pack(
        Pack(5, int(WALL), int(WALL) + TTL, int(WALL), given_messages, WRITER_ID if refer else b""), NOW, WALL
    )
    pack = decode_pack(data, NOW, WALL)
    groups = pack.groups()

    assert refer == pack.may_refer() == (groups is not None)
    if groups is not None:
        assert WRITER_ID == groups.writer
        assert {each.body.group for each in given_messages if each.body} == set(groups.numbers)
    for ours, read in zip(given_messages, pack.messages, strict=True):
        assert (ours.body is None) == read.has_body()
        assert ours.message.size == read.message.size
        if read.body is not None and ours.body is not None:
            assert (ours.body.group, ours.body.index) == (read.body.group, read.body.index)
            before = read.message.ends
            add_body(read, encode_body(ours.message))
            assert before == read.message.ends
        assert fields(ours)[:-1] == fields(read)[:-1]
        assert abs(ours.message.expires - read.message.expires) <= 0.001


def test_a_body_of_another_message_is_refused() -> None:
    """A damaged body would be sent, or a packet without a topic."""
    message = stored(1, b"payload")
    whole_body = encode_body(message.message)
    bad = [b"", whole_body[:-1], whole_body + b"x", b"\0" + whole_body[2:] + b"x", b"\xff" * 9]
    for data in bad:
        with pytest.raises(DamagedPack):
            add_body(stored(1, b"payload"), data)


def test_packs_behind_references_tell_of_them() -> None:
    """A list would be deleted with references in it that nobody counts."""
    plain = Pack(0, int(WALL), int(WALL) + TTL, int(WALL), [stored(1)], b"", True)
    read = decode_pack(encode_pack(plain, NOW, WALL), NOW, WALL)

    assert (True, None, b"") == (read.may_refer(), read.groups(), read.writer)
    rest = rest_of(
        Pack(0, 0, 0, 0, [StoredMessage(1, stored(1).message, Reference(1, 1)), stored(2)], WRITER_ID), [stored(2)]
    )
    assert (True, None, b"") == (rest.may_refer(), rest.groups(), rest.writer)


def test_a_message_of_a_group_is_one_when_it_is_read_again() -> None:
    """It would end with its session; or its next receiver would get it changed."""
    given = GroupMessage(b"t", b"payload", 1, False, b"published" + b"added", NOW + 60.0, 1 << 31, 5)
    own = stored(2)
    first, second = decode_pack(encoded([StoredMessage(1, given), own]), NOW, WALL).messages

    assert isinstance(first.message, GroupMessage)
    assert (1 << 31, 1, b"publishedadded") == (first.message.group, first.message.qos, first.message.properties)
    other = first.message.for_other()
    assert (b"published", first.message.ends) == (other.properties, other.ends)
    assert (fields(own), type(second.message)) == (fields(second), Message)


def test_more_bytes_than_a_message_has_were_not_added() -> None:
    """A damaged pack would be delivered."""
    pack = encoded([StoredMessage(1, GroupMessage(b"t", b"payload", 1, False, b"", NEVER, 7, 1))])
    with pytest.raises(DamagedPack):
        decode_pack(pack, NOW, WALL)


def test_a_message_takes_few_bytes_beside_its_own() -> None:
    """A deep queue would need twice the memory of what it holds: 24 bytes are allowed, with those of the list."""
    alone = encoded([stored(1 << 20)], 1 << 27, due=int(WALL))  # behind messages of a whole week
    many = encoded([stored(number) for number in range(1 << 20, (1 << 20) + 100)], 1 << 30)

    assert len(alone) <= len(b"t" + b"payload") + 24 - ENTRY
    assert len(many) <= 100 * (len(b"payload") + 2) + 24


def test_what_expired_while_it_was_stored_has_expired() -> None:
    """A clock that began anew would give the message another life, or one without end."""
    pack = encoded([stored(1, expires=NOW + 10)])
    for later, expired in [(9.99, False), (10.01, True)]:
        (read,) = decode_pack(pack, 0.0, WALL + later).messages
        assert expired == read.message.expired(0.0)


def test_each_message_ends_after_the_longest_time_that_queues_keep_one() -> None:
    """A queue that nobody reads would be there for ever, or a message be lost whose own expiry is longer."""
    row = [stored(1), stored(2, expires=NOW + 10), stored(3, expires=NOW + 10 * TTL)]
    data = encoded(row)
    for later, expired in [(9, []), (11, [2]), (TTL - 1, [2]), (TTL + 1, [1, 2, 3])]:
        read = decode_pack(data, 0.0, WALL + later).messages
        assert expired == [each.position for each in read if each.message.expired(0.0)]
        assert [NEVER, 10, 10 * TTL] == [
            round(each.message.expires + later) if each.message.expires else NEVER for each in read
        ]


@pytest.mark.parametrize(
    ("lasts", "early"), [(0, 0), (48 * 86400, 48 * 86400), (49 * 86400, 1), (9, 49 * 86400), (-5, 0), (5, -1)]
)
def test_times_may_be_far_apart(lasts: int, early: int) -> None:
    """A queue that keeps messages for months, or was out of order for weeks, could not be stored."""
    given = Pack(1, int(WALL), int(WALL) + lasts, int(WALL) + lasts - early, [stored(1)], b"", True)
    read = decode_pack(encode_pack(given, NOW, WALL), NOW, WALL)

    assert (given.stored_at, given.end, given.due) == (read.stored_at, read.end, read.due)
    assert read.behind


def test_what_is_left_of_a_pack_ends_when_it_would_have() -> None:
    """A pack that is written again and again as its messages end would keep the rest for longer each time."""
    data = encoded([stored(1, expires=NOW + 10), stored(2), stored(5, expires=NOW + 20.5)])
    for later in (11, 12, 13):
        pack = decode_pack(data, NOW, WALL + later)
        pack.messages = [each for each in pack.messages if not each.message.expired(NOW)]
        data = encode_pack(pack, NOW, WALL + later)
    pack = decode_pack(data, 0.0, WALL + 14)

    assert (int(WALL), int(WALL) + TTL) == (pack.stored_at, pack.end)
    assert [2, 5] == [each.position for each in pack.messages]
    assert abs(6.5 - pack.messages[1].message.expires) <= 0.001


whole = encoded([stored(7), stored(9, topic=b"other", expires=NOW + 5)], 5)


def of_form(form: int, data: bytes) -> bytes:
    """*data* with *form* as that of its head."""
    return bytes((form << 4 | data[0] & 0xF,)) + data[1:] if data else b""


@pytest.mark.parametrize("length", range(len(whole)))
def test_a_part_of_a_pack_is_none_unless_whole_messages_are_missing(length: int) -> None:
    """A torn write would be delivered."""
    try:
        read = decode_pack(whole[:length], NOW, WALL)
    except DamagedPack:
        return
    assert [7] == [each.position for each in read.messages]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        of_form(BEHIND + 1, whole),
        bytes((BEHIND + 1,)) + older(whole)[1:],
        of_form(PLAIN, b"\xff" * 30),
        bytes((PLAIN,)) + b"\xff" * 30,
        older(whole)[: LONG_HEAD.size - 1],
        encoded([stored(1)]).replace(b"\x01t", b"\x7ft"),
        whole[: HEAD.size] + bytes((1, 0)),
        whole[: HEAD.size] + bytes((1, 0, 0x03, 0, 0)),
        whole[: HEAD.size] + bytes((1, 0, 0x81, 0, 0)),
        whole[: HEAD.size] + bytes((1, 0, 0x81, 1, 1, 1)),  # a reference in a form without any
        of_form(REFERRING, whole)[: HEAD.size] + bytes((1, 0, *WRITER_ID, 0x89, 1, 1)),  # as the one before
        of_form(REFERRING, whole)[: HEAD.size] + bytes((1, 0, *WRITER_ID[:5])),
        of_form(REFERRING, whole)[: HEAD.size] + bytes((1, 0, *WRITER_ID, 0x81, 1, 1)),
    ],
)
def test_what_is_no_pack_is_refused(data: bytes) -> None:
    """Bytes of another program, or of a newer version, would be delivered."""
    with pytest.raises(DamagedPack):
        decode_pack(data, NOW, WALL)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_pack_or_damaged(data: bytes) -> None:
    """A stored value could end the worker that reads it."""
    for form in (PLAIN, REFERRING, BEHIND):
        for pack in (bytes((form,)) + data, of_form(form, data)):
            try:
                decode_pack(pack, NOW, WALL)
            except DamagedPack:
                pass


@given(st.integers(1, 1 << 40), st.integers(0, PACKET_IDS - 1))
def test_a_packet_id_finds_its_position(last: int, back: int) -> None:
    """An acknowledgement would remove another message [MQTT-2.2.1-4]."""
    position = max(1, last - back)

    assert 1 <= packet_id_of(position) <= PACKET_IDS
    assert position == position_of(packet_id_of(position), last)
    assert packet_id_of(position + 1) in (packet_id_of(position) + 1, 1)


def test_an_id_that_was_never_given_has_no_position() -> None:
    """An acknowledgement out of nowhere would remove a message."""
    assert position_of(8, 7) <= 0
