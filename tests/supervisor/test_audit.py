# The audit lines: their own file, and what is written there.
import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.audit import KEPT, Audit
from supervisor.commands import READS, Commands
from supervisor.node import Node
from supervisor.request import Refused
from tests.supervisor.test_limits import Lines


class Life:
    """The commands of a node without workers, and their audit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = Lines()
        self.stopped: list[str] = []
        config = SimpleNamespace(drain=SimpleNamespace(timeout=5.0))
        node = SimpleNamespace(stop=self.stopped.append, config=config, shards=[])
        self.commands = Commands(cast(Node, node), Audit(path, "here", self.log, lambda: 0.0))

    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


async def test_a_changing_command_is_audited_with_its_result(tmp_path: Path) -> None:
    """Nobody could say who stopped the node, or who tried to."""
    life = Life(tmp_path / "audit")
    await life.commands.do("stop", {}, "jo (uid 7)")
    with pytest.raises(Refused):
        await life.commands.do("kick", {"client": "me"}, "eve (uid 9)")

    first = {"who": "jo (uid 7)", "what": "stop", "where": "here", "arguments": {}, "result": "done"}
    second = {"who": "eve (uid 9)", "what": "kick", "where": "here", "arguments": {"client": "me"}}
    second["result"] = "No client 'me' is connected."
    assert ["weir stop"] == life.stopped
    assert [{"timestamp": "1970-01-01T00:00:00+00:00", **each} for each in (first, second)] == life.written()
    assert [("audit", first), ("audit", second)] == life.log.lines
    assert 0o600 == stat.S_IMODE(life.path.stat().st_mode)


async def test_a_command_that_only_reads_is_not_audited(tmp_path: Path) -> None:
    """A dashboard that asks each second would push the lines out."""
    life = Life(tmp_path / "audit")
    assert {"clients": [], "more": False} == await life.commands.do("clients", {"limit": 1, "match": ""}, "jo")

    assert "clients" in READS
    assert [] == life.written()
    assert [] == life.log.lines


async def test_a_large_file_is_renamed_and_a_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that kicks clients in a loop would fill the disk."""
    monkeypatch.setattr("supervisor.audit.ROTATE_AT", 1)
    audit = Audit(tmp_path / "audit", "here", Lines(), lambda: 0.0)
    for number in range(KEPT + 3):
        audit.note("jo", "kick", {"client": str(number)}, "done")

    files = ["audit", *(f"audit.{number}" for number in range(1, KEPT + 1))]
    assert files == sorted(one.name for one in tmp_path.iterdir())
    assert ["5", "4", "3", "2"] == [json.loads((tmp_path / one).read_text())["arguments"]["client"] for one in files]


async def test_a_file_that_cannot_be_written_stops_no_command(tmp_path: Path) -> None:
    """A full disk would keep an operator from disconnecting a client; a link could name any file of the user."""
    (tmp_path / "audit").symlink_to(tmp_path / "other")
    life = Life(tmp_path / "audit")
    await life.commands.do("stop", {}, "jo")

    assert ["audit", "audit_write_failed"] == [event for event, _ in life.log.lines]
    assert not (tmp_path / "other").exists()
