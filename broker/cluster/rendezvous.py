# Rendezvous hashing: which worker that lives settles what a dead one has left.
#
# Every worker comes to the same answer from the same list, without asking anybody. When a worker joins or leaves, only
# the shares that it gets, or had, move. If lists differ for a moment, two workers may take themselves for the one that
# is meant: who is first in Redis has it (store/durable/inheritance.py).
# Rejected: the lowest worker settles all. It would read the sessions of a whole node alone, and serve no client well.
import hashlib
from collections.abc import Iterable

Place = tuple[str, int]  # the name of a node, and a shard of it


def settler_of(dead: Place, live: Iterable[Place]) -> Place | None:
    """The place among *live* whose worker settles the worker that had the place *dead*; None: there is none."""
    best: Place | None = None
    highest = b""
    for place in live:
        weight = _weight(dead, place)
        if best is None or (weight, place) > (highest, best):
            best, highest = place, weight
    return best


def _weight(dead: Place, place: Place) -> bytes:
    text = f"{dead[0]}/{dead[1]} {place[0]}/{place[1]}"  # no name has a slash or a space
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
