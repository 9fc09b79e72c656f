# The history: Parquet files that nothing overwrites, skips or leaves out.
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.analytics.records import BEGAN
from tests.analytics.test_job import history

pytest.importorskip("pyspark")


def rows(batch: int, boot: str = "b", **more: Any) -> pyarrow.Table:
    return pyarrow.table({"second": [BEGAN + batch], "boot": [boot], "sequence": [batch], **more})


def test_the_history_of_a_day_is_a_few_files(tmp_path: Path) -> None:
    """A file a second would be 80 000 a day, and reading them takes longer than living through it."""
    from analytics.sinks import MERGED, History

    kept = History(tmp_path / "history")

    for batch in range(3 * MERGED):
        kept.write("query", batch, rows(batch))
        kept.write("query", batch, rows(batch))
    kept.write("query", 5, rows(5))  # is in another's file by now

    assert [("b", batch) for batch in range(3 * MERGED)] == history(tmp_path)
    assert len(list((tmp_path / "history").rglob("*.parquet"))) <= MERGED + 2
    assert [] == list((tmp_path / "history").rglob("*.unfinished"))


def test_a_new_checkpoint_neither_replaces_nor_skips_files(tmp_path: Path) -> None:
    """Its batches start at 0 again: those of the lost checkpoint were overwritten, or taken for its own and skipped."""
    from analytics.sinks import MERGED, History

    kept = History(tmp_path / "history")
    for batch in range(MERGED + 2):  # the first ones are merged by then
        kept.write("first", batch, rows(batch))

    for batch in range(MERGED + 2):
        kept.write("second", batch, rows(batch, "c"))

    assert [(boot, batch) for boot in "bc" for batch in range(MERGED + 2)] == history(tmp_path)


def test_files_of_a_version_with_fewer_columns_are_merged_with_those_of_this_one(tmp_path: Path) -> None:
    """After an upgrade the job would fail at the first merge, and at each repetition of it."""
    from analytics.sinks import MERGED, History

    kept = History(tmp_path / "history")
    for batch in range(MERGED + 1):
        kept.write("query", batch, rows(batch) if batch < 9 else rows(batch, another=[1]))

    assert [("b", batch) for batch in range(MERGED + 1)] == history(tmp_path)
