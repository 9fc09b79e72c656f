# What the dashboard says, without a browser: from records and rows to words.
import json
import sys
import time
from typing import Any

import pytest

from analytics.dashboard import charts, words
from analytics.dashboard.live import FORGOTTEN, FRESH, HITTING, KEPT, WORKERS, Live
from analytics.dashboard.model import NODES, Analysis, Away, Board, board, lately
from analytics.dashboard.nodes import PAGE, SIGNALS, node_board, node_rows, pages, worker_board
from analytics.dashboard.values import Part, client_page
from analytics.rows import VERSION
from tests.dashboard import rows
from tests.dashboard.rows import aggressor, record, top

NOW = 1_700_000_000.5


def told(*records: Any, at: float = NOW) -> Live:
    live = Live()
    for one in records:
        live.take(one, at)
    return live


def seen(live: Live, analysis: Analysis | None = None, away: Away | None = None, now: float = NOW) -> Board:
    return board(live, analysis or Analysis(), away, now)


def said(shown: Board) -> str:
    return " ".join("".join(part.text for part in sentence) for sentence in shown.sentences)


def analysed(**given: Any) -> Analysis:
    status: Any = rows.status(NOW)
    found: Any = given.pop("findings", rows.findings(NOW))
    return Analysis(status=given.pop("status", status), findings=found, **given)


def test_a_calm_cluster_is_called_calm() -> None:
    """A page that always warns is not read when it matters."""
    shown = seen(told(record(), record(1)))

    assert (0, "Normal", "calm") == (shown.level, shown.word, shown.tone)
    assert "No worker is overloaded. No client is throttled." == said(shown)
    assert "1 node, 2 workers, 6 clients" == shown.summary


def test_one_client_is_one_client() -> None:
    """The page would say that 1 clients are throttled."""
    shown = seen(told(record(clients={"throttled": 1, "non_writable": 2})))

    assert ["1 client", "2 clients"] == [f"{one.value} {one.unit}" for one in shown.tiles[2:4]]


def test_who_waits_for_a_quota_in_a_calm_cluster_is_told() -> None:
    """The page said that no client is throttled, while clients waited for their quotas."""
    waits = {"quota_session_messages": {"clients": 2, "pauses": 3, "ms": 1500}}

    words_of_it = said(seen(told(record(paused=waits))))

    assert "No client is throttled" not in words_of_it
    assert "clients waited 1.5 s in total in the last 10 s, because of quota_session_messages." in words_of_it


def test_a_busy_client_of_a_worker_that_is_well_is_not_blamed() -> None:
    """An operator would limit a client that the overload is not due to."""
    bulk = {"clients": top("client", ("bulk", 90_000, 9000))}

    words_of_it = said(seen(told(aggressor(7), record(1, top=bulk))))

    assert "Most of the load is due to pump-1: 80 % of the cost of the overloaded workers" in words_of_it
    assert "bulk" not in words_of_it


def test_half_of_the_load_is_not_most_of_it() -> None:
    """Two clients with equal shares: one of them would be blamed for most of it."""
    two = {"clients": top("client", ("a", 500, 5), ("b", 500, 5))}

    assert "Much of the load is due to a: 50 %" in said(
        seen(told(record(level=3, cause="lag", signals={"lag": 2.0}, top=two)))
    )


def test_late_and_lost_records_and_wrong_clocks_are_shown() -> None:
    """Figures would be too low, or of another time, and no one would know why."""
    job: Any = rows.status(NOW, late=3, lost=2, clocks={"b": -74.9})
    footnote = seen(told(record(), record(sequence=5)), analysed(status=job)).footnote

    assert "4 records are missing since this dashboard started" in footnote
    assert "The analysis ignored 3 late records." in footnote
    assert "The log lost 2 entries before the analysis read them." in footnote
    assert "The clock of node b is 75 s behind" in footnote


def test_the_page_has_one_time_zone_whatever_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same second was 22:13 in one sentence and 00:13 in another."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        shown = seen(told(record(), at=NOW), analysed(incidents=(rows.incident(NOW - 20, NOW - 10),)))
    finally:
        monkeypatch.undo()
        time.tzset()

    assert "22:13:20 UTC" == shown.moment
    assert "22:13:00 \N{EN DASH} 22:13:10" == shown.stories[0].when
    assert charts.level_options(charts.of_seconds([], NOW), [])["useUTC"] is True


def test_a_page_of_a_moment_ago_says_so() -> None:
    """An operator would take what was for what is."""
    shown = board(told(record()), Analysis(), None, NOW, behind=12.0)

    assert "This page shows the cluster of 12 s ago" in shown.trouble


def test_an_aggressor_is_named_with_the_signal_and_the_worker() -> None:
    """Somebody would know that it is bad, and not because of what and whom."""
    shown = seen(told(aggressor(7), record(1)))

    assert (7, "Throttling hard") == (shown.level, shown.word)
    assert "(lag). This signal of worker 0 of node a is at 2.3 times its target." in said(shown)
    assert "Most of the load is due to pump-1: 80 % of the cost" in said(shown)
    assert Part("pump-1", client_page("pump-1")) in [part for sentence in shown.sentences for part in sentence]


def test_nobody_is_blamed_who_is_one_of_many() -> None:
    """A fleet that is too busy as a whole would cost somebody innocent their connection."""
    fleet = top("client", *((f"c{number}", 100, 10) for number in range(10)))
    shown = seen(told(record(level=3, cause="lag", signals={"lag": 2.0}, top={"clients": fleet})))

    assert "No single client is the cause: the most costly one has 10 % of the cost." in said(shown)


def test_a_storm_of_connects_has_no_culprit() -> None:
    """While clients come by the thousand, the busiest publisher would be blamed for it."""
    storm = aggressor(4, connects={"received": 3000, "refused": 1000})
    storm["cause"] = "connect"
    shown = seen(told(storm))

    assert "A storm of connects: 300 CONNECTs per second, 100 of them refused" in said(shown)
    assert "pump-1" not in said(shown)


def test_an_overload_elsewhere_is_no_riddle() -> None:
    """A level that no worker of this log has would be shown without any cause."""
    assert "another Redis" in said(seen(told(record(cluster_level=5))))


def test_a_level_that_cannot_be_is_not_shown() -> None:
    """A record from who knows where would break the scale of the page."""
    assert 10 == seen(told(record(level=99))).level


def test_what_is_no_record_is_counted_and_left_out() -> None:
    """One corrupt entry of the log would end the dashboard, or hide that something is wrong."""
    live = told(record(), {"version": 1}, "text", 7)
    live.take(None, NOW)

    assert (4, 1) == (live.unfit, len(live.workers))
    assert "4 invalid entries of the log skipped" in seen(live).footnote


def test_a_record_that_comes_twice_counts_once() -> None:
    """When the reader begins anew, or the nodes are asked beside the log, traffic would double."""
    twice = record(sequence=5, dropped={"expired": 3})

    assert {"expired": 3} == told(twice, twice).counted(NOW).dropped
    assert {"expired": 6} == told(twice, {**twice, "boot": "another"}).counted(NOW).dropped


def test_a_worker_that_is_silent_does_not_count() -> None:
    """The level of a worker that died would stand on the page for ever."""
    live = told(aggressor(9))
    live.take(record(1), NOW + FRESH + 1)
    shown = seen(live, now=NOW + FRESH + 1)

    assert 0 == shown.level
    assert "silent for 4.5 s" == shown.workers[0].cells[2].text
    live.pass_time(NOW + FORGOTTEN + 2)
    assert ["a/1"] == [row.key for row in seen(live, now=NOW + FORGOTTEN + 2).workers]


def test_when_nobody_speaks_no_level_is_claimed() -> None:
    """A cluster that is down would look calm."""
    shown = seen(told(record()), now=NOW + 30)

    assert ("unknown", "Unknown", ()) == (shown.tone, shown.word, shown.sentences)
    assert "No worker has written a record for 30 s" in shown.trouble


def test_before_the_first_record_it_says_what_to_do() -> None:
    """An empty page is a riddle."""
    assert "`weir start --detach` starts a node" in seen(Live()).empty
    assert "until Redis is available" in seen(Live(), away=Away(NOW, "gone")).empty
    assert "" == seen(told(record())).empty


def test_redis_away_is_said_with_since_when_and_what_is_shown() -> None:
    """Old figures would pass for those of now."""
    gone = Away(NOW - 9, "connection refused", nodes_answer=True)

    assert f"since {words.clock(NOW - 9)} (connection refused)" in seen(told(record()), away=gone).trouble
    assert "shows data from the nodes of this machine" in seen(told(record()), away=gone).trouble
    assert "This page shows old data." in seen(told(record()), away=gone, now=NOW + 60).trouble
    assert "This page shows old data." in seen(told(record()), away=Away(NOW, "gone")).trouble


def test_everything_is_bounded() -> None:
    """Somebody leaves the page open for weeks, and a cluster may grow, or somebody writes nonsense into the log."""
    live = Live()
    for second in range(KEPT * 2):
        live.take(record(sequence=second, top={"clients": top("client", (f"c{second}", 1, 1))}), NOW + second)
    for worker in range(WORKERS + 100):
        live.take(record(worker), NOW + KEPT * 2)

    assert KEPT == len(live.seconds)
    assert WORKERS == len(live.workers)
    assert HITTING >= len(live.hitters("client", NOW + KEPT * 2)[0])
    assert 48 == len(seen(live, now=NOW + KEPT * 2).workers)
    assert 100 == live.turned_away
    assert "100 records are not shown: they are from more than 4096 workers." in seen(live, now=NOW + KEPT * 2).footnote
    assert "4048 more workers with less load not shown" in seen(live, now=NOW + KEPT * 2).workers_more


def test_a_second_without_a_record_is_a_gap_only_if_nobody_speaks() -> None:
    """A record that is late by a moment would tear the line, and an outage would be drawn through."""
    live = told(record(level=2))
    live.take(record(sequence=1, level=3), NOW + 2)
    live.take(record(sequence=2), NOW + 12)

    assert [2, 2, 3, 3, 3, 3, None, None, None, None, None, None] == [one.level for one in live.seconds]


def test_rates_are_by_the_second_whatever_the_interval() -> None:
    """With metrics.interval = 5 all figures would be five times too high."""
    shown = seen(told(record(interval_s=5.0, in_={"messages": 500, "bytes": 5000})))

    assert ("100", "/s", "1.0kB/s of payload") == (shown.tiles[0].value, shown.tiles[0].unit, shown.tiles[0].note)


def test_losses_are_told_with_what_they_mean() -> None:
    """A label alone says nothing to who has not read the sources."""
    shown = seen(
        told(
            record(
                dropped={"not_writable": 7, "expired": 9},
                refused={"quota_session_messages": 2},
                connects={"refused": 3},
                paused={"credits": {"clients": 1, "pauses": 1, "ms": 1500}},
            )
        )
    )

    assert ["expired", "not_writable"] == [row.key for row in shown.tables.dropped]
    assert ["CONNECT", "quota_session_messages"] == [row.key for row in shown.tables.refused]
    assert "1.5 s" == shown.tables.held[0].cells[2].text
    assert all(row.cells[1].text for row in (*shown.tables.dropped, *shown.tables.refused, *shown.tables.held))


@pytest.mark.parametrize(
    ("status", "runs", "words_of_it"),
    [
        (None, False, "`weir analytics run` starts it"),
        (rows.status(NOW), True, "the last batch took 800 ms"),
        (rows.status(NOW - 16), False, "its last result is from"),
        (rows.status(NOW, newest=NOW - 60), True, "a delay of 60 s"),
        (rows.status(NOW, newest=0), True, "has not read a record yet"),
        (rows.status(NOW, version=VERSION + 1), False, "another version"),
        ({"version": VERSION, "updated": "soon"}, False, "starts it"),
    ],
)
def test_it_says_how_the_analysis_is(status: Any, runs: bool, words_of_it: str) -> None:
    """Who waits for an episode would not know that nobody writes any."""
    shown = seen(told(record()), Analysis(status=status))

    assert runs == shown.analysing
    assert words_of_it in shown.analysis


def test_an_episode_is_told_with_its_story() -> None:
    """The row of an episode would lack what it is for: when, because of what and whom, and who paid."""
    ended: Any = rows.incident(NOW - 100, NOW - 60)
    shown = seen(told(record()), analysed(incidents=(ended,)))
    (story,) = shown.stories

    assert (False, 7, "lag", "pump-1", "40 s") == (story.open, story.peak, story.cause, story.culprit, story.lasted)
    assert f"{words.clock(NOW - 100)} \N{EN DASH} {words.clock(NOW - 60)}" == story.when
    assert "pump-1 had 83 % of the cost" in story.story[0]
    assert client_page("pump-1") == story.clients[0].cells[0].href
    assert ("22 s", "not_writable") == (story.throttled[0].cells[1].text, story.losses[0].key)
    assert ((NOW - 100, NOW - 60),) == shown.marks


def test_an_episode_that_goes_on_ends_now() -> None:
    """It would look over, or last as long as at the last batch."""
    going: Any = rows.incident(NOW - 7, None)
    (story,) = seen(told(record()), analysed(incidents=(going,)), now=NOW + 3).stories

    assert (True, None, "10 s") == (story.open, story.end, story.lasted)


def test_what_the_analysis_knew_is_not_said_of_now() -> None:
    """While it is behind, or down, an episode that is over would go on, and a warning be believed that is past."""
    going: Any = rows.incident(NOW - 100, None)
    found = rows.findings(NOW, warnings=[rows.warning()])
    shown = seen(told(record()), analysed(incidents=(going,), findings=found, status=rows.status(NOW, newest=NOW - 60)))
    (story,) = shown.stories

    assert (True, False, "40 s") == (story.open, story.current, story.lasted)
    assert words.clock(NOW - 60) in story.when
    assert () == shown.notes


def test_a_gate_is_named_as_what_lies_behind_it() -> None:
    """`b/1` as a cause says nothing to who does not know the names of resources."""
    gate: Any = rows.incident(NOW - 7, None, cause="b/1")

    assert "worker 1 of node b is slow" == seen(told(record()), analysed(incidents=(gate,))).stories[0].cause


@pytest.mark.parametrize("broken", [{}, {"id": 1}, {**rows.incident(NOW, None), "culprits": 5}, {"start": "soon"}])
def test_a_row_that_is_no_episode_is_left_out(broken: Any) -> None:
    """One bad row in Redis, or one of another version, would take the page with it."""
    good: Any = rows.incident(NOW - 7, None)
    shown = seen(told(record()), analysed(incidents=(broken, good)))

    assert [good["id"]] == [story.key for story in shown.stories]


def test_warnings_come_before_facts() -> None:
    """What will hurt in eight seconds would stand below what is merely so."""
    slow = {"node": "a", "worker": 0, "non_writable": 2, "outbound_share": 0.3, "since": NOW - 60}
    found = rows.findings(NOW, warnings=[rows.warning()], slow_readers=[slow, {"node": "broken"}])
    shown = seen(told(record()), analysed(findings=found))

    assert ["warning", "fact"] == [note.kind for note in shown.notes]
    assert "2 slow readers" in shown.notes[1].text


def test_old_findings_are_not_shown_as_those_of_now() -> None:
    """A warning of yesterday would stand there while the analysis is down."""
    found = rows.findings(NOW, warnings=[rows.warning()])

    assert () == seen(told(record()), analysed(findings=found, status=rows.status(NOW - 60))).notes


def test_the_minute_comes_from_the_analysis() -> None:
    """Its figures would be computed and never seen."""
    assert ["80 %", "80 %"] == [seen(told(aggressor(5)), analysed()).tables.clients[0].cells[at].text for at in (1, 5)]
    assert "\N{EN DASH}" == seen(told(aggressor(5))).tables.clients[0].cells[5].text


def test_what_clients_choose_cannot_move_what_is_around_it() -> None:
    """Somebody with a long id, or one that turns the direction of writing, could hide others."""
    assert "a\ufffdb" == words.shown("a\u202eb")
    assert words.LONGEST >= len(words.shown("x" * 500))
    assert "(empty)" == words.shown("")
    assert "/client/a%2Fb%20%3C%3E%3F%23" == client_page("a/b <>?#")


def test_latencies_have_no_exponent() -> None:
    """A latency of two seconds was shown as 2.16e+03 ms, at the moment at which it matters."""
    assert ["0.357", "12.3", "999", "1000", "2163"] == [
        words.latency(one) for one in (0.3567, 12.345, 999.4, 999.9, 2163.4)
    ]


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (9960, "10k"), (999_499, "999k"), (3.1e6, "3.1M"), (2e9, "2.0G")],
)
def test_numbers_are_short(number: float, shown: str) -> None:
    """Columns would not line up, or 1000k would be among them."""
    assert shown == words.count(number)


def test_a_client_page_says_what_it_did_lately() -> None:
    """The page of a client would only know what the broker decided, and not what it sends."""
    assert "8 messages" in lately(told(aggressor(3)), "pump-1", NOW)
    assert "not among" in lately(told(aggressor(3)), "nobody", NOW)


def test_charts_draw_windows_and_gaps() -> None:
    """An hour in which the analysis stood still would be drawn as calm."""
    marks = {start: charts.mark_of(rows.window(start, 10, 4)) for start in (1000, 1020)}
    lines = charts.of_windows({start: mark for start, mark in marks.items() if mark}, 10, 3, 1025.0)

    assert [[990e3, None], [1000e3, 4], [1010e3, None], [1020e3, 4]] == lines.level
    assert [100.0, None, 100.0] == [value for _, value in lines.incoming[1:]]
    for broken in (None, 5, {}, {"span": 0, "cluster": {}, "nodes": {}}):
        assert charts.mark_of(broken) is None


def test_charts_show_nodes_only_if_there_are_several() -> None:
    """The one line would be drawn twice."""
    one = told(record(), at=NOW - 2)
    one.pass_time(NOW)
    two = told(record(), {**record(), "node": "b", "level": 4}, at=NOW - 2)
    two.pass_time(NOW)

    assert {} == charts.of_seconds(one.seconds, NOW).nodes
    assert ["a", "b"] == list(charts.of_seconds(two.seconds, NOW).nodes)
    assert json.dumps(charts.level_options(charts.of_seconds(two.seconds, NOW), [(NOW - 5, NOW)]))


def cluster(nodes: int = 20, workers: int = 2, **given: Any) -> Live:
    """*given*: what node n05 has."""
    live = Live()
    for node in range(nodes):
        for worker in range(workers):
            more = given if node == 5 and not worker else {}
            live.take(record(worker, node=f"n{node:02}", **more), NOW)
    return live


def test_the_nodes_with_most_trouble_come_first_and_the_others_are_counted() -> None:
    """Of a hundred nodes one would look for the one that is overloaded, or take those that are shown for all."""
    live = cluster(level=4, cluster_level=4, cause="lag", signals={"lag": 2.0})
    live.take(record(7, node="n19", clients={"throttled": 3}), NOW)
    live.take(record(7, node="n18", sequence=1), NOW - FRESH - 1)
    shown = seen(live)

    assert [("n05", "4"), ("n18", "0"), ("n19", "0"), ("n00", "0")] == [
        (row.key, row.cells[1].text) for row in shown.nodes[:4]
    ]
    assert ("/node/n05", "lag 2.00 (worker 0)") == (shown.nodes[0].cells[0].href, shown.nodes[0].cells[2].text)
    assert "2 of 3" == shown.nodes[1].cells[3].text
    assert NODES == len(shown.nodes)
    assert "8 more nodes, not overloaded: all 20 nodes." == "".join(part.text for part in shown.nodes_more)
    assert () == shown.workers


def test_a_cluster_of_one_node_shows_its_workers_at_once() -> None:
    """One would have to click to see the four workers of a single node."""
    shown = seen(told(record(), record(1)))

    assert ((), (), ["a/0", "a/1"]) == (shown.nodes, shown.nodes_more, [row.key for row in shown.workers])
    assert "/worker/1/a" == shown.workers[1].cells[0].href


def test_a_silent_node_comes_before_a_busy_one_and_has_no_level() -> None:
    """It died, and would be the last of a hundred, or calm; or a hundred would hide the one that is overloaded."""
    live = cluster(nodes=4, workers=1)
    for node, level in ((0, 4), (2, 0), (3, 5)):
        live.take(record(node=f"n{node:02}", sequence=1, level=level, cause="lag"), NOW + 10)
    rows_of_it = seen(live, now=NOW + 10).nodes

    assert ["n03", "n01", "n00", "n02"] == [row.key for row in rows_of_it]
    rows_of_it = rows_of_it[1:]
    assert ["\N{EN DASH}", "silent for 10 s", "0 of 1"] == [cell.text for cell in rows_of_it[0].cells[1:4]]


def test_all_nodes_are_on_pages() -> None:
    """The last of them could not be seen at all, or all at once by a browser that cannot show them."""
    listed = node_rows(cluster(nodes=2 * PAGE + 1), NOW)

    assert [(PAGE, 1, 3), (PAGE, 2, 3), (1, 3, 3), (1, 3, 3), (PAGE, 1, 3)] == [
        (len(part), number, last) for part, number, last in (pages(listed, one) for one in (1, 2, 3, 99, -5))
    ]
    assert ([], 1, 1) == pages([], 1)


def test_the_page_of_a_node_has_its_own_figures_only() -> None:
    """Somebody would look for the cause at the wrong node."""
    mine = top("client", ("mine", 800, 80))
    live = cluster(
        level=4,
        cluster_level=4,
        cause="lag",
        signals={"lag": 2.0},
        dropped={"expired": 3},
        connects={"refused": 2},
        top={"clients": mine},
    )
    live.take(record(9, node="n06", dropped={"not_writable": 5}, top={"clients": top("client", ("other", 1, 1))}), NOW)
    shown = node_board(live, "n05", NOW)
    other = node_board(live, "n04", NOW)

    assert (4, "busy", "Worker 0: clients wait too long to be served (lag). This signal is at 2 times its target.") == (
        shown.level,
        shown.tone,
        shown.sentence,
    )
    assert (["n05/0", "n05/1"], ["mine"]) == (
        [row.key for row in shown.workers],
        [row.key for row in shown.tables.clients],
    )
    assert (["expired"], ["CONNECT"]) == (
        [row.key for row in shown.tables.dropped],
        [row.key for row in shown.tables.refused],
    )
    assert ("Not overloaded.", (), ()) == (other.sentence, other.tables.clients, other.tables.dropped)
    assert "No worker of this node has written a record" in node_board(live, "none", NOW).missing


def test_the_page_of_a_worker_has_its_signals_the_highest_first() -> None:
    """A worker has one for each peer: that of the slow one would be somewhere among a hundred."""
    signals = {f"n{one:02}/0": one / 100 for one in range(30)}
    live = told(record(3, signals=signals, cluster_level=5, queues=record()["queues"] | {"outbound_bytes": 500}))
    shown = worker_board(live, "a", 3, NOW)

    assert (SIGNALS, "n29/0", "0.29") == (len(shown.signals), shown.signals[0].key, shown.signals[0].cells[2].text)
    assert "10 more lower signals not shown." == shown.signals_more
    assert "Level 5 is in force, because of another worker" in shown.sentence
    assert "500B of 1.0kB" in [row.cells[1].text for row in shown.figures]
    assert "This worker has not written" in worker_board(live, "a", 4, NOW).missing


def test_an_incident_says_where_it_is_and_whom_it_slows_down() -> None:
    """Somebody would know that there is an overload, and not of which of a hundred nodes."""
    of_one, of_many = rows.incident(NOW - 9, None), rows.incident(NOW - 99, NOW - 50)
    of_many["episodes"] = [{**of_many["episodes"][0], "id": f"{one}", "resource": f"b/{one}"} for one in range(2)]
    of_many |= {"episodes_all": 39, "nodes": ["b", "c"], "slowed_nodes": 12}
    of_many["slowed"] = [{"node": "d", "throttled_most": 4, "paused_ms": 2500}]
    shown = seen(told(record()), analysed(incidents=(of_one, of_many), incidents_all=33))

    assert ["node a", "39 episodes, 2 nodes"] == [story.where for story in shown.stories]
    story = shown.stories[1]
    assert ("37 more episodes not shown.", "11 more nodes not shown.") == (story.members_more, story.slowed_more)
    assert (["worker 0 of node b", "worker 1 of node b"], "/node/b") == (
        [row.cells[0].text for row in story.members],
        story.members[0].cells[0].href,
    )
    assert (["d", "4", "2.5 s"], frozenset("bcd")) == ([cell.text for cell in story.slowed[0].cells], story.nodes)
    assert "3 more incidents not shown." == shown.stories_more


def test_what_a_table_leaves_out_is_counted() -> None:
    """Those that are shown would be taken for all."""
    many = top("client", *((f"c{one}", 100 + one, 1) for one in range(14)))
    reasons = {f"reason-{one}": 1 for one in range(11)}
    shown = seen(told(record(top={"clients": many}, dropped=reasons)))

    assert ("4 more clients not shown.", "", "3 more reasons not shown.", "", "") == shown.tables.more


def test_the_share_of_a_client_is_of_all_whatever_is_kept_of_the_others() -> None:
    """With thousands of workers few names of each are kept: the share of those would be far too large."""
    live = Live()
    for worker in range(2000):
        names = (("everywhere", 100, 1), *((f"c{worker}-{one}", 90 - one, 1) for one in range(9)))
        live.take(record(worker, top={"clients": top("client", *names)}), NOW)

    assert ("everywhere", "11 %") == (seen(live).tables.clients[0].key, seen(live).tables.clients[0].cells[1].text)


def test_charts_draw_the_nodes_with_the_highest_levels() -> None:
    """They drew the first by name, which are well, and nobody saw the one that is not."""
    live = cluster()
    live.take(record(7, node="n17", level=4, cause="lag", signals={"lag": 2.0}), NOW)
    live.pass_time(NOW + 2)
    lines = charts.of_seconds(live.seconds, NOW + 2)

    assert (["n00", "n01", "n02", "n03", "n04", "n17"], 14) == (list(lines.nodes), lines.left_out)


def test_the_model_needs_no_browser() -> None:
    """What it says could only be tested, and imported, where NiceGUI is installed."""
    import subprocess

    source = "import sys, analytics.dashboard.model, analytics.dashboard.charts; sys.exit('nicegui' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", source], check=False).returncode
