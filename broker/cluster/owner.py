# Who owns a session, as Redis says it, and what a worker knows of a session that it owns.


class Owner:
    def __init__(self, epoch: int, incarnation: str, shard: int, node: str) -> None:
        self.epoch = epoch
        self.incarnation = incarnation  # of the worker: another one each time that its process starts
        self.shard = shard
        self.node = node

    def text(self) -> str:
        """As Redis has it."""
        return f"{self.epoch} {self.incarnation} {self.shard} {self.node}"


class Ownership:
    def __init__(self, epoch: int, will: bytes, told: bool) -> None:
        self.epoch = epoch
        self.will = will  # as `will_record.encode()` makes it; b"": it has none
        self.told = told  # Redis has, or may have, an owner of this client id that is us


def read_owner(text: bytes) -> Owner | None:
    """The owner that *text* "EPOCH INCARNATION SHARD NODE" names; None if it is none of ours."""
    words = text.decode(errors="replace").split(" ")
    if len(words) != 4 or not words[0].isdecimal() or not words[2].isdecimal():
        return None
    return Owner(int(words[0]), words[1], int(words[2]), words[3])


def epoch_and_owner(reply: object) -> tuple[int, Owner | None]:
    """What claim.lua answers to claim and, for each, to reclaim."""
    assert isinstance(reply, list)
    text = reply[1]
    return int(reply[0]), read_owner(text) if isinstance(text, bytes) else None
