# The owner of a session, as Redis has it, and what a worker knows of a session that it owns.
from broker.worker_id import WorkerId


class Owner:
    def __init__(self, epoch: int, worker: WorkerId, user: str) -> None:
        self.epoch = epoch
        self.worker = worker
        self.user = user  # the tag of the user to whom the session belongs, see session/principal.py

    def text(self) -> str:
        """The value of the session's owner key in Redis: "EPOCH INCARNATION SHARD NODE USER"."""
        worker = self.worker
        return f"{self.epoch} {worker.incarnation_text} {worker.shard} {worker.node} {self.user}"


class Ownership:
    def __init__(self, epoch: int, user: str, will: bytes, told: bool) -> None:
        self.epoch = epoch
        self.user = user  # the tag of the user to whom the session belongs
        self.will = will  # as `will_record.encode()` makes it; b"": there is none
        self.told = told  # Redis names this worker as the owner, or may


def read_owner(text: bytes) -> Owner | None:
    """The owner that *text*, "EPOCH INCARNATION SHARD NODE USER", names; None if the text has another form."""
    words = text.decode(errors="replace").split(" ")
    if len(words) != 5 or not words[0].isdecimal() or not words[2].isdecimal():
        return None
    try:
        incarnation = int(words[1], 16)
    except ValueError:
        return None
    return Owner(int(words[0]), WorkerId(words[3], int(words[2]), incarnation), words[4])


def lacks_will(reply: object) -> bool:
    """Whether Redis was full when it carried out the claim that *reply* answers: it has not stored the will."""
    assert isinstance(reply, list)
    return len(reply) > 2


def epoch_and_owner(reply: object) -> tuple[int, Owner | None]:
    """The answer of claim.lua to claim, or to one session of a reclaim."""
    assert isinstance(reply, list)
    text = reply[1]
    return int(reply[0]), read_owner(text) if isinstance(text, bytes) else None
