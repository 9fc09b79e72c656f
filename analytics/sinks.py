# The sinks of a batch: Redis for the dashboard, Parquet for the history.
#
# All writes are idempotent, so a batch that is written again after a failure changes nothing:
# - windows, episodes and incidents are fields of hashes, by start and by id;
# - an invalid entry is added to its stream under its own id, which Redis accepts once;
# - a history file is named by the streaming query and its batch, and is written atomically. The batches of a new
#   checkpoint start at 0 again, under the name of another query: they replace no file, and none is skipped.
# Everything in Redis is bounded, by KEPT, EPISODES, INCIDENTS and UNFIT. The history is never deleted; every MERGED
# files of a day are merged into one, as a day has 80 000 batches.
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import redis

from analytics.keys import EPISODES, INCIDENTS, KEPT, UNFIT, AnalyticsKeys, start_of
from analytics.rows import Episode, Findings, Incident, Overload, Status, Window
from analytics.source import id_order
from analytics.story import story
from broker.metrics.record import misfit

MERGED: Final = 64  # batch files that are merged into one
NODES: Final = 32  # up to here windows are kept for KEPT seconds, about 40 MB; with more nodes, for a shorter time
DIGITS: Final = 10  # of the batch number in a file name, so that names sort by number
BAD_ID: Final = "equal or smaller"  # in the error of Redis if the stream already has the entry


class RedisSink:
    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._client = client
        self._keys = AnalyticsKeys(prefix)

    def write(
        self,
        windows: list[Window],
        episodes: list[Episode],
        incidents: list[Incident],
        findings: Findings,
        status: Status,
    ) -> None:
        """Write the results of a batch. Raises redis.RedisError; the write may have succeeded nevertheless."""
        keys = self._keys
        stale = self._stale_windows(windows)
        stale |= self._stale(keys.episodes, episodes, EPISODES) | self._stale(keys.incidents, incidents, INCIDENTS)
        with self._client.pipeline(transaction=True) as pipeline:
            for span in {window["span"] for window in windows}:
                rows = {str(one["start"]): _json(one) for one in windows if one["span"] == span}
                pipeline.hset(keys.windows(span), mapping=cast(Any, rows))
            _replace(pipeline, keys.episodes, episodes)
            _replace(pipeline, keys.incidents, incidents)
            for key, fields in stale.items():
                pipeline.hdel(key, *fields)
            pipeline.set(keys.findings, _json(findings))
            pipeline.set(keys.status, _json(status))
            pipeline.execute()

    def close_left_open(self) -> None:
        """Close the episodes and incidents that an analysis with another checkpoint left open. Raises redis.RedisError.

        Their end is the newest second of that analysis. A new analysis that finds their records replaces them. Rows of
        other versions are removed.
        """
        status = _parsed(cast(bytes | None, self._client.get(self._keys.status)))
        newest = _number(status.get("newest"))
        for key in (self._keys.episodes, self._keys.incidents):
            closed: dict[str, str] = {}
            for id, value in cast(dict[bytes, bytes], self._client.hgetall(key)).items():
                row = _parsed(value)
                if row.get("state") == "closed" and "slowed" in row:
                    continue
                try:
                    closed[id.decode(errors="replace")] = _json(_closed(row, newest))
                except (AttributeError, KeyError, TypeError, ValueError):
                    self._client.hdel(key, id)
            if closed:
                self._client.hset(key, mapping=cast(Any, closed))

    def write_status(self, status: Status) -> None:
        """Write the status only. Raises redis.RedisError."""
        self._client.set(self._keys.status, _json(status))

    def write_unfit(self, entries: Mapping[str, str]) -> None:
        """Write invalid *entries* of the log, by id. Raises redis.RedisError."""
        for id in sorted(entries, key=id_order):
            fields = {"id": id, "problem": problem(entries[id]), "record": entries[id]}
            clean: dict[Any, Any] = {name: value.encode(errors="replace") for name, value in fields.items()}
            try:
                self._client.xadd(self._keys.unfit, clean, id=id, maxlen=UNFIT, approximate=True)
            except redis.ResponseError as error:
                if BAD_ID not in str(error):
                    raise

    def _stale_windows(self, windows: list[Window]) -> dict[str, list[str]]:
        """Return the fields that have expired, by key."""
        found: dict[str, list[str]] = {}
        for span in {window["span"] for window in windows}:
            rows = [window for window in windows if window["span"] == span]
            newest = max(window["start"] for window in rows)
            nodes = max(len(window["nodes"]) for window in rows)
            kept = KEPT[span] * min(1, NODES / max(1, nodes))
            starts = cast(list[bytes], self._client.hkeys(self._keys.windows(span)))
            old = [start.decode() for start in starts if int(start) <= newest - kept]
            if old:
                found[self._keys.windows(span)] = old
        return found

    def _stale(self, key: str, rows: Sequence[Overload], most: int) -> dict[str, list[str]]:
        """Return the ids of the oldest of the rows of *key* that would be more than *most* with *rows*."""
        if not rows or self._client.hlen(key) + len(rows) <= most:
            return {}
        written = {id.decode(errors="replace") for id in cast(list[bytes], self._client.hkeys(key))}
        ids = sorted(written | {one["id"] for one in rows}, key=lambda id: (start_of(id), id))
        return {key: ids[:-most]} if len(ids) > most else {}


def _replace(pipeline: Any, key: str, rows: Sequence[Overload]) -> None:
    """Write *rows* to the hash *key*, and delete those that were merged into others."""
    kept = {one["id"]: _json(one) for one in rows if one["state"] != "merged"}
    if kept:
        pipeline.hset(key, mapping=kept)
    gone = [one["id"] for one in rows if one["state"] == "merged"]
    if gone:
        pipeline.hdel(key, *gone)


def _closed(row: dict[str, Any], newest: float) -> dict[str, Any]:
    """Return *row*, closed at the second *newest*. AttributeError, KeyError, TypeError, ValueError: it is malformed."""
    last = max(float(row["peak_at"]) + 1.0, newest)
    left: Any = {**row, "state": "closed", "end": last, "interrupted": True}
    if "episodes" in left:
        left["episodes"] = [{**one, "end": last if one["end"] is None else one["end"]} for one in left["episodes"]]
    left["story"] = story(left, left.get("episodes", ()), left.get("episodes_all", 0))
    return cast(dict[str, Any], left)


def _number(found: object) -> float:
    return float(found) if isinstance(found, int | float) else 0.0


class History:
    """Parquet files: FOLDER/seconds/date=YYYY-MM-DD/QUERY.BATCH.parquet, or QUERY.FIRST-LAST.parquet if merged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, query: str, batch: int, rows: pyarrow.Table) -> None:
        """Write the seconds of *batch* of the streaming query *query*. Raises OSError."""
        dates = pyarrow.compute.strftime(
            pyarrow.compute.cast(rows.column("second"), pyarrow.timestamp("s", tz="UTC")), format="%Y-%m-%d"
        )
        for date in sorted(set(dates.to_pylist())):
            folder = self._folder / "seconds" / f"date={date}"
            folder.mkdir(parents=True, exist_ok=True)
            if not _covered(folder, query, batch):
                path = folder / f"{query}.{batch:0{DIGITS}}.parquet"
                _write(path, rows.filter(pyarrow.compute.equal(dates, date)))
                _merge(folder, query, batch)


def _batches(file: Path) -> list[int]:
    """Return the number of the batch in *file*, or the first and the last one if it is merged."""
    return [int(number) for number in file.stem.rpartition(".")[2].split("-")]


def _covered(folder: Path, query: str, batch: int) -> bool:
    """Return whether a merged file contains *batch* of *query*."""
    spans = (numbers for one in folder.glob(f"{query}.*.parquet") if len(numbers := _batches(one)) == 2)
    return any(first <= batch <= last for first, last in spans)


def _merge(folder: Path, query: str, newest: int) -> None:
    """Merge MERGED files of *query* into one, except the file of *newest*, which may be written again."""
    files = sorted(folder.glob(f"{query}.*.parquet"))
    single = [one for one in files if len(numbers := _batches(one)) == 1 and numbers[0] < newest]
    if len(single) < MERGED:
        return
    # The others were left by an interrupted merge.
    left = [one for one in single if not _covered(folder, query, _batches(one)[0])]
    if left:
        tables = [pyarrow.parquet.ParquetFile(one).read() for one in left]
        span = f"{_batches(left[0])[0]:0{DIGITS}}-{_batches(left[-1])[0]:0{DIGITS}}"
        # A later version of the analysis may have more columns than the one that wrote the first of these files.
        _write(folder / f"{query}.{span}.parquet", pyarrow.concat_tables(tables, promote_options="default"))
    for one in single:  # a reader may find some seconds twice at this moment: (boot, sequence) identifies them
        one.unlink()


def _write(path: Path, table: pyarrow.Table) -> None:
    unfinished = path.with_suffix(".unfinished")
    pyarrow.parquet.write_table(table, unfinished)
    os.replace(unfinished, path)


def problem(body: str) -> str:
    """Return why *body*, or its beginning, is not a valid record."""
    if not body:
        return "the entry has no record"
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return "not JSON, or too long"
    return misfit(found) or "wrong version or invalid timestamp"


def unfit_entries(ids: Iterable[str], bodies: Iterable[str | None], most: int) -> dict[str, str]:
    """Return the first *most* entries that have a body, by id."""
    found = sorted(((id, body) for id, body in zip(ids, bodies, strict=True) if body is not None), key=_by_id)
    return dict(found[:most])


def _by_id(entry: tuple[str, str]) -> tuple[int, int]:
    return id_order(entry[0])


def _parsed(value: bytes | None) -> dict[str, Any]:
    """Return the JSON object *value*; an empty one if it is none."""
    try:
        found = json.loads(value or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _json(row: object) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace").decode()
