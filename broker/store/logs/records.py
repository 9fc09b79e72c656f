# What a record of a log holds: packs of messages, each with a token, so that one that is appended twice is read once.
#
# A record is sent again when it is not known whether the log has it: Kafka did not answer in time, or the process that
# had sent it has died. So a pack has a token, (source, sequence): its source numbers the packs that it appends to a
# partition, and appends one again only with all behind it. Who reads drops a sequence that is not above the last one of
# its source. That needs no fence: a request that a stopped broker carries out a minute later does no harm either.
#
# What is known of sources belongs to the position from which reading goes on, and is saved with it. A position
# knows the SOURCES that appended last: a request that comes later than what that many others have appended since would
# be read twice.
#
# A record: 1 (the version), CRC-32 of the rest; then of each pack source and sequence (8 bytes each), length (4), body.
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, error
from typing import Final

VERSION: Final = 1
SOURCES: Final = 64  # workers that append to one partition within the seconds in which a record may be sent again
START: Final = Struct("!BI")
HEAD: Final = Struct("!QQI")
LOG_BYTES: Final = 16  # of the identity of a topic
POSITION: Final = Struct(f"!BQ{LOG_BYTES}s")  # version, offset, log
TOKEN: Final = Struct("!QQ")
OVERHEAD: Final = HEAD.size  # bytes of a pack beside its body


@dataclass
class Pack:
    """*source*: 64 bits that no other appender of the partition has or had; *sequence* begins at 1."""

    source: int
    sequence: int
    body: bytes


@dataclass
class Record:
    """What is read of one record: the packs that had not been read before. Reading goes on at `offset + 1`."""

    offset: int
    packs: Sequence[Pack]
    log: bytes = b""  # the identity of its topic


def encode(packs: Sequence[Pack]) -> bytes:
    parts = []
    for pack in packs:
        parts.append(HEAD.pack(pack.source, pack.sequence, len(pack.body)))
        parts.append(pack.body)
    content = b"".join(parts)
    return START.pack(VERSION, zlib.crc32(content)) + content


def decode(record: bytes) -> list[Pack]:
    """The packs in *record*. ValueError: it is no record, or damaged."""
    if len(record) < START.size:
        raise ValueError("too short for a record")
    version, checksum = START.unpack_from(record)
    if version != VERSION:
        raise ValueError(f"a record of version {version}, and not {VERSION}")
    if checksum != zlib.crc32(memoryview(record)[START.size :]):
        raise ValueError("a record with another checksum than its content")
    packs = []
    at = START.size
    while at < len(record):
        try:
            source, sequence, length = HEAD.unpack_from(record, at)
        except error:
            length = len(record)
        at += HEAD.size
        if at + length > len(record):
            raise ValueError("a record that ends within a pack")
        packs.append(Pack(source, sequence, record[at : at + length]))
        at += length
    return packs


class Position:
    """Where reading goes on: the offset of the next record, and the last sequence of each source before it.

    The offset is one of `log`, the identity of the topic (b"": not known): a topic of that name that was made later has
    other records there.
    """

    def __init__(self, offset: int = 0, log: bytes = b"") -> None:
        self.offset = offset
        self.log = log
        self._last: dict[int, int] = {}  # source -> sequence; the source that appended last is the last one

    @classmethod
    def decode(cls, saved: bytes) -> "Position":
        """What `encode()` has saved. ValueError."""
        try:
            version, offset, log = POSITION.unpack_from(saved)
            position = cls(offset, log if any(log) else b"")
            position._last = dict(TOKEN.iter_unpack(saved[POSITION.size :]))
        except error as why:
            raise ValueError(f"not a position: {why}") from None
        if version != VERSION:
            raise ValueError("not a position of this version")
        return position

    def encode(self) -> bytes:
        return POSITION.pack(VERSION, self.offset, self.log) + b"".join(TOKEN.pack(*one) for one in self._last.items())

    def take(self, offset: int, packs: Sequence[Pack]) -> Record:
        """Pass the record at *offset*, which has *packs*; what is new in it."""
        fresh = []
        for pack in packs:
            if pack.sequence > self._last.get(pack.source, 0):
                self._pass(pack)
                fresh.append(pack)
        self.offset = offset + 1
        return Record(offset, fresh, self.log)

    def has_passed(self, packs: Sequence[Pack]) -> bool:
        """Whether nothing in *packs* is new."""
        return all(pack.sequence <= self._last.get(pack.source, 0) for pack in packs)

    def advance(self, record: Record) -> None:
        """Pass *record*, which another position has read."""
        self.log = record.log
        for pack in record.packs:
            self._pass(pack)
        self.offset = record.offset + 1

    def _pass(self, pack: Pack) -> None:
        self._last.pop(pack.source, None)
        self._last[pack.source] = pack.sequence
        if len(self._last) > SOURCES:
            del self._last[next(iter(self._last))]
