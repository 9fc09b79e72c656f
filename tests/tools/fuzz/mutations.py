# How a conversation is spoilt: each mutation takes its packets and those of another one, and gives new packets.
#
# Most leave the CONNECT alone, or few inputs would get beyond it.
from collections.abc import Callable
from random import Random
from typing import Final

from broker.mqtt.fields import encode_length

SPARES_CONNECT: Final = 0.88  # of all mutations
TIMES: Final = [0, 1, 1, 1, 1, 2, 2, 3, 5]  # mutations of one conversation; 0: it stays as it was
TELLING_BYTES: Final = [0x00, 0x01, 0x7F, 0x80, 0xC0, 0xED, 0xFF]
TELLING_LENGTHS: Final = [0, 1, 2, 127, 128, 16383, 65535]
HUGE: Final = b"\xff\xff\xff\x7f"  # a remaining length of 256 MiB
ENDLESS: Final = b"\xff\xff\xff\xff"  # more bytes than a remaining length may have
LONGEST_PATCH: Final = 40  # bytes inserted, deleted or repeated

Mutation = Callable[[Random, list[bytes], list[bytes]], list[bytes]]


def mutate(random: Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
    """*packets*, spoilt a few times."""
    for _ in range(random.choice(TIMES)):
        if packets:
            packets = random.choice(MUTATIONS)(random, packets, other)
    return packets


def _any(random: Random, packets: list[bytes]) -> int:
    """Which packet to spoil."""
    if len(packets) > 1 and random.random() < SPARES_CONNECT:
        return random.randrange(1, len(packets))
    return random.randrange(len(packets))


def _replaced(packets: list[bytes], at: int, *by: bytes) -> list[bytes]:
    return [*packets[:at], *by, *packets[at + 1 :]]


# Whole packets.


def _swap(random: Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
    one, two = _any(random, packets), _any(random, packets)
    swapped = list(packets)
    swapped[one], swapped[two] = swapped[two], swapped[one]
    return swapped


def _repeat(random: Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
    at = _any(random, packets)
    return _replaced(packets, at, *[packets[at]] * random.choice([2, 2, 3, 50]))


def _leave_out(random: Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
    return _replaced(packets, _any(random, packets))


def _splice(random: Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
    """Go on in the middle of the other one, whose version may be another, too."""
    return packets[: random.randrange(1, len(packets) + 1)] + other[random.randrange(len(other)) :]


def _borrow(random: Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
    at = _any(random, packets)
    return [*packets[: at + 1], random.choice(other), *packets[at + 1 :]]


def _other_version(random: Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
    """Our CONNECT, and all else as the other says it."""
    return packets[:1] + other[1:]


def _truncate(random: Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
    at = _any(random, packets)
    return [*packets[:at], packets[at][: random.randrange(len(packets[at]) + 1)]]


# The bytes of one packet.


def _bytewise(change: Callable[[Random, bytearray], None]) -> Mutation:
    def mutation(random: Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
        at = _any(random, packets)
        data = bytearray(packets[at])
        if data:
            change(random, data)
        return _replaced(packets, at, bytes(data))

    return mutation


def _flip_bits(random: Random, data: bytearray) -> None:
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _overwrite(random: Random, data: bytearray) -> None:
    data[random.randrange(len(data))] = random.choice(TELLING_BYTES)


def _insert(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.randrange(1, LONGEST_PATCH))


def _delete(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.randrange(1, LONGEST_PATCH)]


def _duplicate(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    data[at:at] = data[at : at + random.randrange(1, LONGEST_PATCH)]


def _first_byte(random: Random, data: bytearray) -> None:
    """Another type, or other flags."""
    data[0] = random.randrange(256)


def _remaining_length(random: Random, data: bytearray) -> None:
    """A little wrong, much too large, padded, or endless."""
    size = 1
    while size < len(data) - 1 and data[size] & 0x80:
        size += 1
    true = max(0, len(data) - 1 - size)
    near = encode_length(max(0, true + random.choice([-2, -1, 1, 2])))
    padded = bytes((true & 0x7F | 0x80, true >> 7 & 0x7F | 0x80, true >> 14 & 0x7F | 0x80, true >> 21))
    data[1 : 1 + size] = random.choice([near, near, near, padded, HUGE, ENDLESS])


def _field_length(random: Random, data: bytearray) -> None:
    """Two bytes that may be the length of a field."""
    at = random.randrange(min(len(data), 30))
    now = int.from_bytes(data[at : at + 2], "big")
    near = max(0, min(0xFFFF, now + random.choice([-1, 1])))
    data[at : at + 2] = random.choice([near, near, random.choice(TELLING_LENGTHS)]).to_bytes(2, "big")


def _noise(random: Random, data: bytearray) -> None:
    data[:] = random.randbytes(random.choice([1, 2, 10, 100, 1000]))


MUTATIONS: Final[list[Mutation]] = [
    _swap,
    _repeat,
    _leave_out,
    _splice,
    _borrow,
    _other_version,
    _truncate,
    *[
        _bytewise(change)
        for change in (
            _flip_bits,
            _flip_bits,
            _overwrite,
            _insert,
            _delete,
            _duplicate,
            _first_byte,
            _remaining_length,
            _remaining_length,
            _field_length,
            _field_length,
            _noise,
        )
    ],
]
