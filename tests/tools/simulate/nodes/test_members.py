# The list of nodes, as the supervisors of 200 of them know it.
from pathlib import Path
from random import Random

import pytest

from supervisor import node_lease
from supervisor.node_lease import LEASE, RENEW, Said
from tests.tools.simulate.nodes.members import PaperRedis, Supervisor

NODES = 200


def test_supervisors_agree_and_read_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes would settle one that lives, or wait for one that is dead; or each look would read all descriptions."""
    reads = 0

    def read(**said: object) -> Said:
        nonlocal reads
        reads += 1
        return Said(**said)  # type: ignore[arg-type]

    monkeypatch.setattr(node_lease, "Said", read)
    monkeypatch.setattr(node_lease, "CLOCK", float("inf"))  # the one of Redis is on paper
    random, server = Random(1), PaperRedis()
    nodes = [Supervisor(server, f"n{number}", tmp_path / f"n{number}", random) for number in range(NODES)]

    def look() -> int:
        """All of them look; how many descriptions they read."""
        before = reads
        for node in nodes:
            node.look()
        return reads - before

    look()
    everybody = {node.name for node in nodes}
    assert all(node.others() == dict.fromkeys(everybody - {node.name}, 2) for node in nodes)
    for _ in range(3):
        server.now += RENEW
        assert 0 == look()  # which says nothing new

    changed = random.sample(nodes, 5)
    for node in changed:
        node.replace_worker()
    assert len(changed) * len(nodes) == look() + look()  # some had looked before it changed
    killed, ended = nodes.pop(3), nodes.pop(7)
    ended.lease.release()
    assert 0 == look()
    assert all(ended.name not in node.others() and killed.name in node.others() for node in nodes)
    for _ in range(int(LEASE / RENEW) + 1):
        server.now += RENEW
        assert 0 == look()
    gone = {killed.name, ended.name}
    assert all(node.others() == dict.fromkeys(everybody - gone - {node.name}, 2) for node in nodes)
    assert all([killed.name] == [dead.name for dead in node.membership.others.dead] for node in nodes)
    assert all(len(node.told) < 2 * NODES for node in nodes)
