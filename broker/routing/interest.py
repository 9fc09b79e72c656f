# Interest: what an absent session wants, in a few bytes that say nothing of who it is.
#
# A session that is in Redis only is found by hashes of its filters. A topic cannot be looked up among hashes of
# wildcard filters, so with each hash goes the *shape* of its filter: how many levels it has, which of them are "+",
# and whether it ends in "#". A topic and a shape make the one filter of that shape that matches the topic, and its
# hash is looked up. So a topic costs a hash for each shape, however many filters there are, and the filters of a fleet
# have a handful of shapes. Equal hashes of different filters do no harm: a session is read from Redis for nothing.
#
# Interest is a sequence of *entries*, one for each filter:
#
#   1 byte     n, the length of the shape
#   n bytes    the shape: levels before "#", 1 if the filter ends in "#" or else 0, the positions of "+".
#              A filter without wildcards has the empty shape.
#   8 bytes    blake2b of the filter
#
# It is stored, behind a deadline (store/durable/index.py), so the form is the same in all processes and stays as it is
# (store/redis/keys.py has the version).
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

DEADLINE: Final = 4  # bytes: Unix time in seconds, big-endian, before a stored interest
HASH: Final = 8  # bytes: two of a million filters are equal with a probability of 3 in 10^8
FILTERS: Final = 256  # of one session: with more it is never cold, as to add and remove it would hold the loop
LEVELS: Final = 250  # of a filter with wildcards: a level is a byte, and so is the length of a shape


def interest_of(filters: Iterable[bytes]) -> bytes | None:
    """The interest of a session that waits for messages to *filters*. None: it has too many, or too many levels."""
    found: list[bytes] = []
    for filter in filters:
        entry = entry_of(filter)
        if not entry or len(found) == FILTERS:
            return None
        found.append(entry)
    return b"".join(found)


def entry_of(filter: bytes) -> bytes:
    """The entry of *filter*; empty if it has too many levels."""
    if b"+" not in filter and b"#" not in filter:
        return b"\0" + hash_of(filter)
    names = filter.split(b"/")
    open_ended = names[-1] == b"#"
    levels = len(names) - open_ended
    if levels > LEVELS:
        return b""
    shape = bytes([levels, open_ended, *[at for at in range(levels) if names[at] == b"+"]])
    return bytes((len(shape),)) + shape + hash_of(filter)


def entries_of(interest: bytes, most: int = FILTERS) -> list[bytes] | None:
    """The entries of *interest*, each once. None: it is malformed, or has more than *most* of them."""
    found: dict[bytes, None] = {}
    at = 0
    end = len(interest)
    while at < end:
        stop = at + 1 + interest[at] + HASH
        if stop > end or interest[at] == 1 or len(found) == most:
            return None
        found[interest[at:stop]] = None
        at = stop
    return list(found)


def hash_of(filter: bytes) -> bytes:
    return blake2b(filter, digest_size=HASH).digest()


class TopicHashes:
    """For each shape, the hash of the filter that matches *topic*; each is worked out once."""

    def __init__(self, topic: bytes) -> None:
        self.topic: Final = topic
        self._names: list[bytes] = []  # split when the first shape with wildcards is asked for
        self._hashes: dict[bytes, bytes] = {}

    def of(self, shape: bytes) -> bytes:
        """The hash of the filter with *shape* that matches the topic; empty if there is none. O(levels)."""
        known = self._hashes.get(shape)
        if known is None:
            filter = self.filter(shape)
            known = self._hashes[shape] = hash_of(filter) if filter else b""
        return known

    def filter(self, shape: bytes) -> bytes:
        """The filter with *shape* that matches the topic; empty if there is none. O(levels)."""
        if not shape:
            return self.topic
        if not self._names:
            self._names = self.topic.split(b"/")
        names = self._names
        levels = shape[0]
        if len(names) < levels or (len(names) > levels and not shape[1]):
            return b""
        # Wildcards at the first level do not match a topic that begins with "$" [MQTT-4.7.2-1].
        if names[0].startswith(b"$") and (levels == 0 or (len(shape) > 2 and shape[2] == 0)):
            return b""
        path = names[:levels]
        for at in shape[2:]:
            if at >= levels:
                return b""  # malformed: no filter has this shape
            path[at] = b"+"
        if shape[1]:
            path.append(b"#")
        return b"/".join(path)
