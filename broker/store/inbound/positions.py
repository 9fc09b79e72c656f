# Who dispatches each partition of the inbound backbone in this node, and from where on: in Redis.
#
# A partition has one owner at a time, a worker of the node. Another worker may become it when that has given it up, or
# has ended: a process that the supervisor has killed sends nothing any more, and what it had sent to Redis before is
# stored only if it comes before the claim of the next owner. So there is no time at which two workers dispatch.
#
# If Redis has lost what it had, an owner saves its partitions as if nothing had happened, and does so with each new
# connection. What nobody owned then has no position any more, and nobody can claim it before it gets one.
#
# Kafka has positions for groups as well, but forgets those of a group that was idle for a week, and knows not
# which packs of a partition were read (store/logs/records.py).
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Final

from broker.reasons import StoreFailure
from broker.store.logs.records import Position
from broker.store.redis.pipeline import CallbackCommand, CommandPipeline
from broker.store.redis.script import Script
from broker.worker_id import WorkerId

SCRIPT: Final = files("broker.store.inbound").joinpath("positions.lua").read_bytes()
TIMEOUT: Final = 2.0  # seconds


class SavedPosition:
    """How far a partition has come. *begun*: publishes of QoS 0 in records before it may have been dispatched."""

    def __init__(self, number: int, position: Position, begun: int, given_up: bool = False) -> None:
        """*given_up*: whoever saves it dispatches the partition no more."""
        self.number: Final = number
        self.position: Final = position
        self.begun: Final = begun
        self.given_up: Final = given_up


Begun = Callable[[StoreFailure | None], None]
Claimed = Callable[[list[SavedPosition], list[int], StoreFailure | None], None]
Saved = Callable[[list[int], StoreFailure | None], None]


class PartitionPositions:
    def __init__(self, commands: CommandPipeline, key: bytes, worker: WorkerId, clock: Callable[[], float]) -> None:
        """*key*: of the hash of the node."""
        self._commands = commands
        self._script = Script(commands, SCRIPT)
        self._key = key
        self._me = worker.incarnation_text
        self._clock = clock
        self._script_sent = -1  # `times_ready` when the script was sent last

    def connections(self) -> int:
        """How many connections to Redis there were: each may be to a server that has lost what was saved."""
        return self._commands.times_ready

    def begin(self, positions: Mapping[int, Position], then: Begun) -> None:
        """Have partitions that the node has never dispatched begin at *positions*, by their numbers."""
        words: list[str | bytes | int] = ["begin"]
        for number, position in positions.items():
            words += [number, position.encode()]

        def answered(reply: object, failure: StoreFailure | None) -> None:
            then(failure)

        self._call(words, answered)

    def claim(self, numbers: Sequence[int], living: Sequence[WorkerId], then: Claimed) -> None:
        """Become the owner of the partitions *numbers*, unless others of the node, who are *living*, own them.

        *then* is told those that this worker owns now, and how far they have come; and those without a position.
        """

        def answered(reply: object, failure: StoreFailure | None) -> None:
            found: list[SavedPosition] = []
            unknown: list[int] = []
            if failure is None:
                try:
                    found, unknown = _read_claims(numbers, reply)
                except ValueError:
                    failure = StoreFailure.MALFORMED_REPLY
            then(found, unknown, failure)

        others = [worker.incarnation_text for worker in living]
        self._call(["claim", self._me, len(others), *others, *numbers], answered)

    def save(self, positions: Sequence[SavedPosition], then: Saved) -> None:
        """Store *positions*, as they are now; *then* is told which of these partitions another worker owns."""
        words: list[str | bytes | int] = ["save", self._me]
        for each in positions:
            words += [each.number, each.position.encode(), each.begun, int(each.given_up)]

        def answered(reply: object, failure: StoreFailure | None) -> None:
            lost: list[int] = []
            if failure is None:
                try:
                    lost = _read_numbers(reply)
                except ValueError:
                    failure = StoreFailure.MALFORMED_REPLY
            then(lost, failure)

        self._call(words, answered)

    def _call(self, words: list[str | bytes | int], then: Callable[[object, StoreFailure | None], None]) -> None:
        def answered(reply: object, failure: StoreFailure | None) -> None:
            if failure is not None:
                self._script.failed(failure, self._clock())
            then(reply, failure)

        if self._script_sent != self._commands.times_ready:  # the server may be another one, or have lost it
            self._script_sent = self._commands.times_ready
            self._script.load(self._clock())
        command = self._script.call([self._key], words)
        self._commands.submit(CallbackCommand(command, TIMEOUT, answered), self._clock())


def _read_claims(numbers: Sequence[int], reply: object) -> tuple[list[SavedPosition], list[int]]:
    """(what is owned now, what has no position). ValueError."""
    if not isinstance(reply, list) or len(reply) != len(numbers):
        raise ValueError("not a list of claims")
    found: list[SavedPosition] = []
    unknown: list[int] = []
    for number, claim in zip(numbers, reply, strict=True):
        if isinstance(claim, list) and len(claim) == 2:
            found.append(SavedPosition(number, Position.decode(claim[0]), int(claim[1])))
        elif isinstance(claim, list) and len(claim) == 1:
            unknown.append(number)
    return found, unknown


def _read_numbers(reply: object) -> list[int]:
    """ValueError."""
    if not isinstance(reply, list):
        raise ValueError("not a list of numbers")
    return [int(number) for number in reply]
