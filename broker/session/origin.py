# Where a message comes from: the worker that is being served now; and what of it is for a session that moves.
#
# While a session moves from one worker to another, both are subscribed. Of each worker the messages up to a certain one
# are for the session at its old place, and those behind it for the one at its new place (mesh/takeovers.py).


class Origin:
    """The worker whose messages are being delivered."""

    def __init__(self, here: int) -> None:
        self.here = here
        self.shard = here


class Sieve:
    """What a session that moves takes: messages of those workers that are marked, or of the others."""

    def __init__(self, marked: bool) -> None:
        self._marked = marked
        self._shards: set[int] = set()

    def mark(self, shard: int) -> None:
        """All that *shard* sends from now on is for the new place."""
        self._shards.add(shard)

    def takes(self, shard: int) -> bool:
        """A message from *shard* is for the session that has this sieve."""
        return (shard in self._shards) == self._marked
