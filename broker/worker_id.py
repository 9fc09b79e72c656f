# The identity of a worker process: its node, its shard, and its incarnation.
#
# A shard number is an index within a node and outlives a process: the process that replaces a dead worker has the same
# shard and another incarnation, a random number of 63 bits that the supervisor chooses for each start. Code that must
# not mistake a new process for the former one (owners of sessions, overload reports, wills in Redis) compares
# identities.
from typing import Final


class WorkerId:
    """Immutable; two are equal if all three parts are."""

    def __init__(self, node: str, shard: int, incarnation: int) -> None:
        self.node: Final = node
        self.shard: Final = shard
        self.incarnation: Final = incarnation

    def same_place(self, other: "WorkerId") -> bool:
        """Whether *other* is a worker of the same node with the same shard: this one, or one before or after it."""
        return self.shard == other.shard and self.node == other.node

    @property
    def incarnation_text(self) -> str:
        """The incarnation as the keys in Redis and the metrics records contain it: 16 hexadecimal digits."""
        return f"{self.incarnation:016x}"

    def __str__(self) -> str:
        """NODE/SHARD, as logs and resource names show it."""
        return f"{self.node}/{self.shard}"

    def __repr__(self) -> str:
        return f"WorkerId({self.node!r}, {self.shard}, {self.incarnation_text})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerId):
            return False
        return self.incarnation == other.incarnation and self.shard == other.shard and self.node == other.node

    def __hash__(self) -> int:
        return hash(self.incarnation)
