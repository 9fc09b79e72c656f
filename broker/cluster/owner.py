# The owner of a session, as Redis has it, and what a worker knows of a session that it owns.
from broker.worker_id import WorkerId


class Owner:
    def __init__(self, epoch: int, worker: WorkerId) -> None:
        self.epoch = epoch
        self.worker = worker

    def text(self) -> str:
        """The value of the session's owner key in Redis: "EPOCH INCARNATION SHARD NODE"."""
        return f"{self.epoch} {self.worker.incarnation_text} {self.worker.shard} {self.worker.node}"


class Ownership:
    def __init__(self, epoch: int, will: bytes, told: bool) -> None:
        self.epoch = epoch
        self.will = will  # as `will_record.encode()` makes it; b"": there is none
        self.told = told  # Redis names this worker as the owner, or may


def read_owner(text: bytes) -> Owner | None:
    """The owner that *text*, "EPOCH INCARNATION SHARD NODE", names; None if the text has another form."""
    words = text.decode(errors="replace").split(" ")
    if len(words) != 4 or not words[0].isdecimal() or not words[2].isdecimal():
        return None
    try:
        incarnation = int(words[1], 16)
    except ValueError:
        return None
    return Owner(int(words[0]), WorkerId(words[3], int(words[2]), incarnation))


def epoch_and_owner(reply: object) -> tuple[int, Owner | None]:
    """The answer of claim.lua to claim, or to one session of a reclaim."""
    assert isinstance(reply, list)
    text = reply[1]
    return int(reply[0]), read_owner(text) if isinstance(text, bytes) else None
