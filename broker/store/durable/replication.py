# Whether enough replicas have what a worker has stored, for `store.durability = "replicated"`.
#
# The group commit (group_commit.py) counts a transaction as carried out when the server has answered it and
# `store.replicas` replicas have it. WAIT says how many replicas have the writes of its own connection, so the following
# is sent over a connection of its own, after the answer to the transaction:
#
#   EVAL (GET commit number, DEL mark, SET mark), WAIT replicas WAIT_MS
#
# - The transaction has written its number. If the number is there, this server has the transaction: it is not another
#   server behind the same address, to which a replica was promoted that lacks it.
# - The mark is written after that. What replicas receive is one stream, in the order in which the server has executed
#   it. So a replica that has the mark has all before it, whichever connection wrote it: this transaction, and what
#   other workers have written before and this worker has found there.
# - A server that is full writes the mark as well, as DEL is first: see full.lua.
#
# If there are fewer replicas, WAIT is sent again, for as long as it takes; the transaction is not. If the connection
# ends, all of the above is sent again: nothing is stored twice, as the mark means nothing. If the number is not there,
# the group commit asks whether its transaction was carried out, as after a lost answer, and sends it again if not.
#
# Why not WAIT behind EXEC, over the connection of the group commit? It would save a round trip. But a server executes
# nothing else of a connection that waits. Pages of queues are read over that connection, as they have to keep their
# order with transactions, and nobody could read a queue while a replica is missing. After a lost connection WAIT would
# count nothing, so the mark would be needed anyway. Why not WAITAOF, which also waits for the disks of replicas? Redis
# has it since 7.2.
from collections.abc import Callable
from typing import Final, cast

from broker.log import Log
from broker.metrics.counters import Counters
from broker.reasons import StoreFailure
from broker.store.redis.connection import packed
from broker.store.redis.keys import LEASE
from broker.store.redis.pipeline import Command, CommandPipeline

# KEYS commit number, mark; ARGV seconds that the mark stays.
MARK: Final = b"""
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[2], '', 'EX', ARGV[1])
return redis.call('GET', KEYS[1])
"""
WAIT_MS: Final = 500  # after which WAIT says how many have it; below the time after which a connection counts as dead
PATIENCE: Final = 3600.0  # seconds: a connection that is silent ends long before
PAUSE: Final = 0.1  # seconds until what the server refused is sent again

Replicated = Callable[[bool, float], None]  # true: enough replicas have it; false: the server does not have it. Now


class Replication:
    """Asks about one transaction at a time."""

    def __init__(
        self,
        commands: CommandPipeline,
        *,
        commit_number: bytes,
        mark: bytes,
        replicas: int,
        counters: Counters,
        log: Log,
    ) -> None:
        """*commands*: a connection that nobody else uses. *commit_number*: the key of it. *mark*: a key for the mark.

        *replicas*: how many have to have what is stored.
        """
        self.needed: Final = replicas
        self.have = 0  # how many have it, by the last answer
        self.trouble: StoreFailure | None = None  # why it is not known that enough have it
        self.commands: Final = commands
        self._counters = counters
        self._log = log
        self._mark = packed("EVAL", MARK, 2, commit_number, mark, LEASE)
        self._number = 0  # of the transaction; 0: none
        self._then: Replicated = _nobody
        self._marked: bool | None = None  # None: the server has not answered yet, or refused it
        self._again_at = 0.0  # when it is asked again, if the server refused it; 0.0: it did not
        self._logged = False  # that replicas are missing

    def confirm(self, number: int, then: Replicated, now: float) -> None:
        """Call *then* once enough replicas have the transaction *number*, which the server has answered."""
        self._number = number
        self._then = then
        self._ask(now)

    def tick(self, now: float) -> float:
        """Do what is due; return the time of the next thing."""
        due = float("inf")
        if self._again_at:
            if now >= self._again_at:
                self._again_at = 0.0
                self._ask(now)
            else:
                due = self._again_at
        return min(due, self.commands.tick(now))

    def missing(self) -> bool:
        """Whether fewer replicas than needed have what was stored last."""
        return self.trouble is StoreFailure.REPLICAS

    def _ask(self, now: float) -> None:
        self._marked = None
        self.commands.submit(_Mark(self, self._mark), now)
        self._wait(now)

    def _wait(self, now: float) -> None:
        self.commands.submit(_Wait(self, packed("WAIT", self.needed, WAIT_MS)), now)

    def marked(self, number: object) -> None:
        """The mark is written, and *number* is that of the transaction that the server has."""
        self._marked = number == b"%d" % self._number

    def refused(self, failure: StoreFailure) -> None:
        """The mark is not written, or nobody knows."""
        self._marked = None
        self.trouble = failure

    def counted(self, replicas: int, now: float) -> None:
        """*replicas* have the mark, if it is written."""
        if self._marked is None:
            self._again_at = now + PAUSE
        elif not self._marked:
            self.trouble = None
            self._end(False, now)
        elif replicas >= self.needed:
            self.have = replicas
            self.trouble = None
            if self._logged:
                self._logged = False
                self._log.info("store_replicated", replicas=replicas, needed=self.needed)
            self._end(True, now)
        else:
            self.have = replicas
            if not self.missing():
                self.trouble = StoreFailure.REPLICAS
                self._counters.store_failures_by_reason[StoreFailure.REPLICAS.label] += 1
            if not self._logged:
                self._logged = True
                self._log.warning("store_replicas_missing", replicas=replicas, needed=self.needed)
            self._wait(now)

    def not_counted(self, failure: StoreFailure, now: float) -> None:
        """The server did not say how many replicas have it."""
        if failure is StoreFailure.LOST:
            self._ask(now)  # once there is a connection again
        else:
            self.trouble = failure
            self._again_at = now + PAUSE

    def _end(self, replicated: bool, now: float) -> None:
        then, self._then = self._then, _nobody
        self._number = 0
        then(replicated, now)


class _Mark(Command):
    def __init__(self, replication: Replication, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._replication = replication

    def replied(self, reply: object, now: float) -> None:
        self._replication.marked(reply)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._replication.refused(failure)


class _Wait(Command):
    """Behind the mark: so its outcome decides what is done next."""

    def __init__(self, replication: Replication, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._replication = replication

    def replied(self, reply: object, now: float) -> None:
        self._replication.counted(cast(int, reply), now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._replication.not_counted(failure, now)


def _nobody(replicated: bool, now: float) -> None:
    raise NotImplementedError("nothing is under way")
