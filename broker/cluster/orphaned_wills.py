# Orphaned wills: the wills of a worker that has died are published by another worker, each once [MQTT-3.1.2-8].
#
# First the dead worker is fenced, slice by slice: claims that it had sent, and that a stalled Redis has not read yet,
# would otherwise be carried out afterwards, and stay.
# Its wills are read from Redis page by page and wait here for their delay, which counts from now on, as the moment of
# the death is not known. When some are due, claim.lua deletes them in Redis and answers which of them to publish, in
# one step: not those whose client is back, and none of them twice, even if several workers publish for the same dead
# one. If this worker dies, the next one publishes all but the last batch. That batch, or one whose answer is lost with
# the connection, is lost: a will is rather lost than published twice.
# At most RATE wills a second are published, or a dead worker with a hundred thousand clients would delay the clients
# here.
import heapq
from collections.abc import Callable, Iterable
from typing import Final

from broker.cluster.seal import WILL, Seal
from broker.cluster.will_record import decode
from broker.mqtt.packets import Will
from broker.reasons import ProtocolError, StoreFailure
from broker.store.redis.connection import READY, packed
from broker.store.redis.keys import FENCED_FOR, SLICES, Keys
from broker.store.redis.pipeline import Command, CommandPipeline
from broker.store.redis.script import Script

RATE: Final = 2000  # wills a second
INTERVAL: Final = 0.05  # seconds between two batches
BATCH: Final = int(RATE * INTERVAL)
PAGE: Final = 500  # wills read at once
TIMEOUT: Final = 5.0  # seconds for a page or a batch


PublishWill = Callable[[str, str | None, Will, float], None]  # client id, user name, will, time


class OrphanedWillsStatistics:
    def __init__(self) -> None:
        self.published = 0
        self.spared = 0  # their clients are back, or another worker has published them
        self.damaged = 0  # records that cannot be read
        self.forged = 0  # records without a valid seal


class OrphanedWills:
    def __init__(self, commands: CommandPipeline, keys: Keys, script: Script, publish: PublishWill, seal: Seal) -> None:
        self.statistics = OrphanedWillsStatistics()
        self._commands = commands
        self._keys = keys
        self._script = script
        self._publish = publish
        self._seal = seal
        self._unfenced: list[tuple[str, int]] = []  # (incarnation, slice)
        self._unread: list[tuple[str, int, bytes]] = []  # (incarnation, slice, cursor) of pages to read
        self._due: list[tuple[float, str, int, bytes]] = []  # a heap: (when, incarnation, slice, client id)
        self._done: dict[
            tuple[str, bytes], int
        ] = {}  # epoch by (incarnation, client id): wills that the dead worker has settled itself
        self._unanswered = 0  # pages and batches
        self._next = 0.0

    def publish_wills_of(self, incarnation: int, now: float, done: Iterable[tuple[str, int]] = ()) -> None:
        """The worker *incarnation* is dead: publish its wills. A second call does no harm.

        *done*: client id and epoch of the claim, for wills that it has settled and that Redis could not be told of.
        """
        name = f"{incarnation:016x}"
        self._done.update({(name, client_id.encode()): epoch for client_id, epoch in done})
        self._unfenced += [(name, number) for number in range(SLICES)]

    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self._unfenced or self._unread or self._due or self._unanswered)

    def tick(self, now: float) -> float:
        """Do what is due; return the time of the next thing that will be."""
        if self._unanswered or self._commands.state != READY or self.idle():
            return float("inf") if self.idle() else now + INTERVAL
        if self._unfenced:
            self._fence(now)
        elif self._unread:
            incarnation, number, cursor = self._unread.pop()
            self._unanswered += 1
            command = packed("HSCAN", self._keys.wills(number, incarnation.encode()), cursor, "COUNT", PAGE)
            self._commands.submit(_Read(command, self, incarnation, number, cursor), now)
        elif now >= self._next and self._due[0][0] <= now:
            self._next = now + INTERVAL
            self._take_batch(now)
        return max(self._next, now + INTERVAL) if not self._due else max(self._next, self._due[0][0])

    def _fence(self, now: float) -> None:
        unfenced, self._unfenced = self._unfenced, []
        for incarnation, number in unfenced:
            self._unanswered += 1
            command = self._script.call([self._keys.dead(number, incarnation.encode())], ["fence", FENCED_FOR])
            self._commands.submit(_Fence(command, self, incarnation, number), now)

    def _take_batch(self, now: float) -> None:
        batches: dict[tuple[str, int], list[bytes]] = {}
        for _ in range(BATCH):
            if not self._due or self._due[0][0] > now:
                break
            _, incarnation, number, client = heapq.heappop(self._due)
            batches.setdefault((incarnation, number), []).append(client)
        for (incarnation, number), clients in batches.items():
            keys = [self._keys.wills(number, incarnation.encode()), *map(self._keys.owner, clients)]
            words: list[str | bytes | int] = ["take_wills", incarnation, *clients]
            self._unanswered += 1
            self._commands.submit(_Take(self._script.call(keys, words), self, incarnation, number, clients), now)

    def _fenced(self, incarnation: str, number: int) -> None:
        self._unanswered -= 1
        self._unread.append((incarnation, number, b"0"))

    def _not_fenced(self, incarnation: str, number: int, failure: StoreFailure, now: float) -> None:
        self._script.failed(failure, now)
        self._unanswered -= 1
        self._unfenced.append((incarnation, number))

    def _read(self, incarnation: str, number: int, reply: object, now: float) -> None:
        assert isinstance(reply, list)
        self._unanswered -= 1
        cursor, pairs = reply
        for at in range(0, len(pairs), 2):
            words = pairs[at + 1].split(b" ", 2)
            delay = int(words[1]) if len(words) == 3 and words[1].isdigit() else 0
            heapq.heappush(self._due, (now + delay, incarnation, number, pairs[at]))
        if cursor != b"0":
            self._unread.append((incarnation, number, cursor))

    def _unread_again(self, incarnation: str, number: int, cursor: bytes) -> None:
        self._unanswered -= 1
        self._unread.append((incarnation, number, cursor))

    def _taken(self, incarnation: str, clients: list[bytes], reply: object, now: float) -> None:
        assert isinstance(reply, list)
        self._unanswered -= 1
        for client, text in zip(clients, reply, strict=True):
            if not isinstance(text, bytes):
                self.statistics.spared += 1
                continue
            try:
                epoch, _, record = text.split(b" ", 2)
                if int(epoch) <= self._done.get((incarnation, client), 0):
                    self.statistics.spared += 1
                    continue
                opened = self._seal.open(WILL, client, record, now)
                if opened is None:
                    self.statistics.forged += 1
                    continue
                will, user = decode(opened)
            except (IndexError, ValueError, ProtocolError):
                self.statistics.damaged += 1
                continue
            self.statistics.published += 1
            self._publish(client.decode(), user, will, now)

    def _not_taken(
        self, incarnation: str, number: int, clients: list[bytes], failure: StoreFailure, now: float
    ) -> None:
        self._script.failed(failure, now)
        self._unanswered -= 1
        for client in clients:
            heapq.heappush(self._due, (now, incarnation, number, client))


class _Fence(Command):
    def __init__(self, command: bytes, wills: OrphanedWills, incarnation: str, number: int) -> None:
        super().__init__(command, TIMEOUT)
        self._wills = wills
        self._incarnation = incarnation
        self._number = number

    def replied(self, reply: object, now: float) -> None:
        self._wills._fenced(self._incarnation, self._number)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._wills._not_fenced(self._incarnation, self._number, failure, now)


class _Read(Command):
    def __init__(self, command: bytes, wills: OrphanedWills, incarnation: str, number: int, cursor: bytes) -> None:
        super().__init__(command, TIMEOUT)
        self._wills = wills
        self._incarnation = incarnation
        self._number = number
        self._cursor = cursor

    def replied(self, reply: object, now: float) -> None:
        self._wills._read(self._incarnation, self._number, reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._wills._unread_again(self._incarnation, self._number, self._cursor)


class _Take(Command):
    def __init__(
        self, command: bytes, wills: OrphanedWills, incarnation: str, number: int, clients: list[bytes]
    ) -> None:
        super().__init__(command, TIMEOUT)
        self._wills = wills
        self._incarnation = incarnation
        self._number = number
        self._clients = clients

    def replied(self, reply: object, now: float) -> None:
        self._wills._taken(self._incarnation, self._clients, reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._wills._not_taken(self._incarnation, self._number, self._clients, failure, now)

    def replied_late(self, reply: object, now: float) -> None:
        """Redis has deleted the wills after all: publish them, as the next try will not find them."""
        self._wills._unanswered += 1
        self._wills._taken(self._incarnation, self._clients, reply, now)
