# The supervisors of many nodes, on one Redis on paper: leases and the list of nodes, in no time.
#
# The scripts of node_lease.py are written anew in Python here; tests/supervisor/test_node_lease.py has the real ones.
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, cast

import redis

from broker.control.frames import OtherNodes
from broker.store.redis.keys import Keys
from supervisor.membership import Membership
from supervisor.node_lease import RELEASE, Identity, NodeLease, NodeList
from tests.store.loop import Lines as LogLines


class PaperRedis:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.notices = 0
        self._nodes: dict[str, tuple[str, int, str]] = {}  # incarnation, end of the lease in ms, description
        self._since = 0
        self._last = 0

    def __call__(self) -> redis.Redis:
        return cast(redis.Redis, self)

    def __enter__(self) -> "PaperRedis":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def eval(self, script: str, keys: int, *words: Any) -> list[Any] | None:
        name, me, said = words[keys : keys + 3]
        if script == RELEASE:
            del self._nodes[name]
            self.notices += 1
            return None
        lease, gap = int(words[keys + 3]), int(words[keys + 5])
        now = int(1000 * self.now)
        if now - self._last > gap:
            self._since = now
        self._last = now
        held = self._nodes.get(name)
        mine = 0
        if held is None or held[0] == me or held[1] <= now:
            mine = 2 if held is None else 1
            self._nodes[name] = (me, now + lease, said)
            if held is None or held[0] != me or held[2] != said or held[1] <= now:
                self.notices += 1
        answer: list[Any] = [mine, b"%d" % now, b"%d" % self._since]
        for node, (incarnation, until, text) in self._nodes.items():
            answer += [node.encode(), f"{incarnation} {until} {text}".encode(), 0]
        return answer


class Supervisor:
    def __init__(self, server: PaperRedis, name: str, folder: Path, random: Random) -> None:
        self.name = name
        self._random = random
        identity = Identity(
            name=name, host="host", version="1", folder=name, workers=2, agreed={}, compared={}, lanes=2
        )
        folder.mkdir(exist_ok=True)
        self.lease = NodeLease(server, Keys("weir"), b"notices", "paper", identity, folder, LogLines())
        self.replace_worker()
        found = self.lease.take(lambda seconds: None)
        self.told: list[OtherNodes] = []
        self.membership = Membership(self.lease, found, self.told.append, LogLines())

    def replace_worker(self) -> None:
        self.lease.say([f"{self._random.getrandbits(62) + 1:016x}" for _ in range(2)])

    def look(self) -> None:
        found: NodeList = self.lease.renew()
        self.membership._take(found)

    def others(self) -> Mapping[str, int]:
        """By the names of the other nodes: how many of their workers are joined."""
        count: dict[str, int] = {}
        for worker in self.membership.others.workers:
            count[worker.node] = count.get(worker.node, 0) + 1
        return count
