# The table of metrics beside the attributes that it names, and beside the places that show them.
from collections import Counter
from dataclasses import fields
from enum import Enum

import pytest

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.overload_figures import OverloadFigures
from broker.metrics.record import RECORD, Group, Table
from broker.metrics.table import COUNTERS, GAUGES, OVERLOAD, REASONS


def attributes(kind: type) -> list[str]:
    """Those of Counters, compiled or not, that are no methods."""
    made = Counters()
    values = [name for name in dir(made) if not name.startswith("_") and not callable(getattr(made, name))]
    return sorted(name for name in values if isinstance(getattr(made, name), kind))


def test_each_counter_has_one_row() -> None:
    """A counter would be counted and shown nowhere, or a row would name a counter that is not there."""
    assert attributes(int) == sorted(row.attribute for row in COUNTERS)
    assert attributes(dict) == sorted(row.attribute for row in REASONS)


def test_each_gauge_has_one_row() -> None:
    """A gauge would be read and shown nowhere, or a row would name a gauge that is not there."""
    assert sorted([*(row.attribute for row in GAUGES), "overload"]) == sorted(one.name for one in fields(Gauges))
    assert sorted(row.attribute for row in OVERLOAD) == sorted(one.name for one in fields(OverloadFigures))


@pytest.mark.parametrize("row", REASONS, ids=lambda row: row.attribute)
def test_a_counter_by_reason_has_all_labels(row: object) -> None:
    """The first event of a reason would raise, or be counted under a label that no page lists."""
    (found,) = [one for one in REASONS if one is row]
    assert [member.label for member in found.reasons] == list(getattr(Counters(), found.attribute))  # type: ignore[attr-defined]


def test_no_two_rows_have_one_name() -> None:
    """One metric would overwrite the other."""
    gauges = [(row.prometheus, row.quantile) for row in GAUGES]
    plain = [(row.prometheus, "") for rows in (COUNTERS, REASONS, OVERLOAD) for row in rows]
    shown = Counter(pair for pair in [*gauges, *plain] if pair[0])
    topics = [topic for row in COUNTERS for topic in row.topics] + [topic for row in GAUGES for topic in row.topics]
    topics += [row.topic for row in OVERLOAD if row.topic]
    records = [row.record for rows in (COUNTERS, GAUGES, OVERLOAD) for row in rows if row.record]
    reported = [row.reported for row in GAUGES] + [row.reported for row in REASONS]

    for names in (shown, Counter(topics), Counter(records), Counter(reported)):
        assert {1} == set(names.values()), names


def test_reasons_that_share_a_topic_share_no_label() -> None:
    """$SYS and the record would say that a filter was refused where a publish was."""
    labels: dict[str, list[str]] = {}
    for row in REASONS:
        if row.topic:
            labels.setdefault(row.topic, []).extend(labels_of(row.reasons))
    assert all(len(each) == len(set(each)) for each in labels.values())


def labels_of(reasons: type[Enum]) -> list[str]:
    return [member.label for member in reasons]  # type: ignore[attr-defined]


def test_each_path_is_a_field_of_the_record() -> None:
    """A counter that is to be in the record would be missing from it without a word."""
    paths = [row.record for rows in (COUNTERS, GAUGES, OVERLOAD) for row in rows if row.record]
    for path in [*paths, *(row.record for row in REASONS if row.record)]:
        kind: object = RECORD
        for name in path.split("."):
            if isinstance(kind, Table):
                assert name == "*", path
                kind = kind.of
            else:
                assert isinstance(kind, Group), path
                kind = kind.fields[name]


def test_what_a_metric_means_is_a_sentence() -> None:
    """Prometheus would show a help text that nobody understands, or none."""
    meanings = [row.meaning for rows in (COUNTERS, REASONS, GAUGES, OVERLOAD) for row in rows]
    assert [] == [text for text in meanings if not (text[0].isupper() and text.endswith("."))]
