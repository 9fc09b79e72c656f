# A worker, as far as the registry of sessions can tell: one connection to Redis and what was decided on it.
import itertools
import time
from collections.abc import Callable
from typing import Final

from broker.cluster.orphaned_wills import OrphanedWills
from broker.cluster.owner import Owner
from broker.cluster.registry import CLAIMED, Registry, Verdict
from broker.cluster.seal import Seal
from broker.config.schema import Overload
from broker.metrics.counters import Counters
from broker.mqtt.packets import Will
from broker.session.principal import ANONYMOUS
from broker.store.redis.address import RedisAddress
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import CommandPipeline
from broker.worker_id import WorkerId
from tests.store.loop import Loop

KEYS: Final = Keys("weir")
_NUMBERS: Final = itertools.count(1)


class Shard:
    def __init__(
        self,
        loop: Loop,
        address: RedisAddress,
        number: int = 0,
        wall: Callable[[], float] = time.time,
        settles: bool = True,
        alone: bool = False,
        node: str = "node",
        key: bytes = b"",
        durable: bool = False,
    ) -> None:
        """*settles*: conflicts with other owners are noted here; else they wait for the test. *durable*: sessions are
        stored.
        """
        self.loop = loop
        self.identity = WorkerId(node, number, next(_NUMBERS))
        self.incarnation = self.identity.incarnation_text
        self.number = number
        self.wall = wall
        self._settles = settles
        self.superseded_by: dict[str, Owner] = {}
        self.supersedes: dict[str, Owner] = {}
        self.published: list[tuple[str, str | None, Will]] = []
        self.commands = CommandPipeline(loop.wire(), address, f"shard{number}", loop.log)
        self.registry = Registry(
            self.commands,
            KEYS,
            worker=self.identity,
            wall=lambda: self.wall(),
            new_generation=lambda: f"{self.incarnation}-{next(_NUMBERS)}",
            overload=Overload(),
            alone=alone,
            durable=durable,
        )
        self.seal = Seal(key, Counters(), loop.log)
        self.orphaned_wills = OrphanedWills(self.commands, KEYS, self.registry.script, self.publish_will, self.seal)
        loop.ticking += [self, self.commands, self.registry, self.orphaned_wills]
        self.commands.start(loop.now())

    def tick(self, now: float) -> float:
        """Note the conflicts that the registry has found."""
        for conflict in self.registry.owned.take_conflicts() if self._settles else []:
            found = self.supersedes if conflict.ours else self.superseded_by
            found[conflict.client_id] = conflict.owner
        return now + 1.0

    def publish_will(self, client_id: str, user: str | None, will: Will, now: float) -> None:
        self.published.append((client_id, user, will))

    def ask(self, client_id: str, lasting: bool = True, will: bytes = b"", user: str = ANONYMOUS) -> list[Verdict]:
        """A CONNECT; the verdict is in the list that is returned, sooner or later."""
        verdicts: list[Verdict] = []
        self.registry.claim(client_id, user, lasting, will, verdicts.append, self.loop.now())
        return verdicts

    def verdict(self, client_id: str, lasting: bool = True, will: bytes = b"", user: str = ANONYMOUS) -> Verdict:
        verdicts = self.ask(client_id, lasting, will, user)
        self.loop.until(lambda: bool(verdicts))
        (verdict,) = verdicts
        return verdict

    def claim(self, client_id: str, will: bytes = b"") -> int:
        """Claim; the epoch."""
        verdict = self.verdict(client_id, True, will)
        assert CLAIMED == verdict.outcome
        assert verdict.epoch == self.registry.epoch_of(client_id)
        return verdict.epoch

    def hold_locally(self, client_id: str) -> int:
        """Claim without Redis; the epoch."""
        epoch = self.registry.next_epoch(client_id)
        self.registry.hold_locally(client_id, epoch, ANONYMOUS, b"")
        return epoch

    def settled(self) -> bool:
        """Redis knows all that it has to be told."""
        found = self.registry.owned.statistics()
        return not (found.stale or found.ended or self.commands.statistics.waiting)

    def settle(self) -> None:
        self.loop.until(self.settled)
        self.loop.turn()  # conflicts that the last answer brought are settled in the next turn
