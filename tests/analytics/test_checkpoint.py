# What the job goes on from after it has ended, however that was.
import json
from pathlib import Path

import pytest

from analytics.checkpoint import Checkpoint, CheckpointUnusable

LOG = "weir:metrics"


def test_what_is_known_after_a_batch_is_known_after_a_restart(tmp_path: Path) -> None:
    """A sum of figures that somebody made up, or a name that is no text elsewhere, would end the analysis for good."""
    state = {"sum": 2**70, "less": -(2**65), "names": {"\ud800": [1, 2.5, None, True, ""]}, "end": 2**64 - 1}
    first = Checkpoint(tmp_path, LOG)
    assert first.state_before(0) is None
    first.save(0, {"batch": 0})
    first.save(1, state)
    assert (None, {"batch": 0}, state) == (first.state_before(0), first.state_before(1), first.state_before(2))
    first.close()

    again = Checkpoint(tmp_path, LOG)

    assert (None, {"batch": 0}, state) == (again.state_before(0), again.state_before(1), again.state_before(2))
    assert (True, False) == (again.done(1), again.done(2))
    again.close()


def test_the_query_of_a_checkpoint_is_that_of_spark(tmp_path: Path) -> None:
    """The files of the history could not be told apart from those of a checkpoint that was lost."""
    kept = Checkpoint(tmp_path, LOG)
    kept.spark.mkdir()
    (kept.spark / "metadata").write_text('{"id":"0b1e-77"}')

    assert "0b1e-77" == kept.query()
    kept.close()


def test_a_batch_that_was_not_saved_whole_is_not_done(tmp_path: Path) -> None:
    """The job would go on from half a state."""
    kept = Checkpoint(tmp_path, LOG)
    kept.save(0, {"batch": 0})
    (tmp_path / "state" / "1.unfinished").write_bytes(b"half")
    kept.close()
    again = Checkpoint(tmp_path, LOG)
    assert not again.done(1)
    assert {"batch": 0} == again.state_before(1)
    again.close()


def test_a_checkpoint_is_of_one_version_one_log_and_one_job_at_a_time(tmp_path: Path) -> None:
    """The job would go on from what it misunderstands, and say nonsense."""
    folder = tmp_path / "checkpoint"
    first = Checkpoint(folder, "weir:metrics")
    with pytest.raises(CheckpointUnusable, match=r"^Another analysis uses the checkpoint .*: stop it, or choose"):
        Checkpoint(folder, "weir:metrics")
    first.close()
    with pytest.raises(CheckpointUnusable, match=r"belongs to the log weir:metrics: choose another"):
        Checkpoint(folder, "other:metrics")
    (folder / "VERSION").write_text(json.dumps({"version": 99, "log": "weir:metrics"}))
    with pytest.raises(CheckpointUnusable, match=r"has version 99, but this analysis needs version 3: remove it, or"):
        Checkpoint(folder, "weir:metrics")
    (folder / "VERSION").write_text("")
    with pytest.raises(CheckpointUnusable, match="has version unknown"):
        Checkpoint(folder, "weir:metrics")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(CheckpointUnusable, match=r"is not empty and is not a checkpoint: choose another"):
        Checkpoint(tmp_path / "photos", "weir:metrics")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointUnusable, match=r"cannot be used: Not a directory; choose another"):
        Checkpoint(tmp_path / "file" / "below", "weir:metrics")
