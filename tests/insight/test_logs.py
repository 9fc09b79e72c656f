import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from broker.insight import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def events(stream: io.StringIO) -> list[object]:
    return [line["event"] for line in lines(stream)]


def test_where_no_person_reads_lines_are_json_with_level_and_utc_time() -> None:
    """A log collector could not parse the lines, or would read local times as UTC."""
    stream = io.StringIO()
    logs.configure("info", "auto", stream)

    structlog.get_logger().info("client_closed", client="kiln-7\n", reason="PEER_CLOSED")

    (line,) = lines(stream)
    assert ["timestamp", "level", "event"] == list(line)[:3]
    when = datetime.fromisoformat(str(line.pop("timestamp")))
    assert timedelta(0) == when.utcoffset()
    assert {"event": "client_closed", "level": "info", "client": "kiln-7\n", "reason": "PEER_CLOSED"} == line


def test_on_a_terminal_lines_are_text() -> None:
    """On a terminal the log would be JSON."""
    stream = Terminal()
    logs.configure("info", "auto", stream)

    structlog.get_logger().info("client_closed", client="kiln-7")

    assert "client_closed" in stream.getvalue() and "{" not in stream.getvalue()


@pytest.mark.parametrize(
    ("format", "stream", "json_lines"), [("json", Terminal(), True), ("text", io.StringIO(), False)]
)
def test_the_format_can_be_chosen(format: str, stream: io.StringIO, json_lines: bool) -> None:
    """log.format would be ignored."""
    logs.configure("info", format, stream)

    structlog.get_logger().info("started")

    assert json_lines == stream.getvalue().startswith("{")


def test_a_client_id_cannot_paint_on_the_terminal() -> None:
    """A client id could clear the operator's screen or forge lines."""
    stream = io.StringIO()
    logs.configure("info", "text", stream)

    structlog.get_logger().info("client_closed", client="a\x1b[2Jb\nforged\x9b1m\x7f")

    assert 1 == stream.getvalue().count("\n")
    assert set() == set(stream.getvalue()) & {"\x1b", "\x9b", "\x7f"}
    assert "a\\x1b[2Jb\\x0aforged" in stream.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_error_of_ours_is_logged_with_its_traceback(format: str) -> None:
    """A failure would be logged without its traceback."""
    stream = io.StringIO()
    logs.configure("info", format, stream)

    try:
        raise ArithmeticError("the sluice is stuck")
    except ArithmeticError:
        structlog.get_logger().exception("internal_error")

    assert "ArithmeticError: the sluice is stuck" in stream.getvalue()
    assert "Traceback" in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "written"),
    [("debug", ["d", "i", "w", "e"]), ("info", ["i", "w", "e"]), ("warning", ["w", "e"]), ("error", ["e"])],
)
def test_lines_under_the_level_are_not_written(level: str, written: list[str]) -> None:
    """log.level would be ignored."""
    stream = io.StringIO()
    logs.configure(level, "json", stream)
    log = structlog.get_logger()

    log.debug("d"), log.info("i"), log.warning("w"), log.error("e")

    assert written == events(stream)


def test_a_stream_that_is_gone_costs_lines_and_nothing_else() -> None:
    """A closed pipe behind stderr would end every connection that has something to log."""
    stream = io.StringIO()
    writer = logs.LineWriter(stream)
    writer.msg("first")
    stream.close()

    writer.msg("second")

    assert 1 == writer.lost


def test_a_client_cannot_cause_more_lines_a_second_than_the_rate() -> None:
    """Reconnecting in a loop would fill the disk with lines."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    clock = Clock()
    log = logs.ClientLog(3, clock)

    for _ in range(1000):
        log.info("client_closed")
        clock.now += 0.01  # ten seconds in all

    log.flush()
    closed = events(stream).count("client_closed")
    assert 30 <= closed <= 33  # three at once at first, and three a second
    assert 1000 == closed + sum(int(str(line["lines"])) for line in lines(stream) if "lines" in line)
    assert events(stream).count("log_lines_suppressed") <= 11


def test_a_quiet_hour_saves_up_no_more_than_one_second_of_lines() -> None:
    """After a quiet night a storm could write a night's worth of lines at once."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    clock = Clock()
    log = logs.ClientLog(3, clock)
    log.info("client_closed")
    clock.now += 3600.0

    for _ in range(100):
        log.info("client_closed")

    log.write_held()
    assert 1 + 3 == events(stream).count("client_closed")


def test_what_was_left_out_is_told_with_its_event_even_when_no_more_comes() -> None:
    """The log would show three refusals where there were a thousand."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    clock = Clock()
    log = logs.ClientLog(1, clock)
    for _ in range(5):
        log.warning("connect_refused", client="x")

    clock.now += 1.0
    log.flush()
    log.flush()

    told = [
        (line["level"], line["suppressed_event"], line["lines"])
        for line in lines(stream)
        if line["event"] == "log_lines_suppressed"
    ]
    assert 4 == sum(int(str(count)) for _, _, count in told)
    assert {("warning", "connect_refused")} == {(level, of) for level, of, _ in told}


def test_lines_of_nothing_wrong_wait_until_the_loop_has_sent() -> None:
    """Each client would wait for its own line: a worker that has just woken up takes 100 us to write one."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    log = logs.ClientLog(1000, Clock())

    log.info("client_closed")
    log.info("client_connected")
    held = events(stream)
    log.write_held()

    assert ([], ["client_closed", "client_connected"]) == (held, events(stream))


def test_a_line_that_waited_has_the_time_of_its_event() -> None:
    """Lines of one slice would be told apart from each other by less than they were."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    log = logs.ClientLog(1000, Clock())

    log.info("client_closed")
    after = datetime.now(UTC)
    log.write_held()

    assert datetime.fromisoformat(str(lines(stream)[0]["timestamp"])) <= after


def test_a_warning_is_written_at_once_and_behind_the_lines_that_wait() -> None:
    """A worker that dies would not have said why, or in another order than it happened."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    log = logs.ClientLog(1000, Clock())

    log.info("client_connected")
    log.warning("internal_error")

    assert ["client_connected", "internal_error"] == events(stream)


def test_no_more_than_a_hundred_lines_wait() -> None:
    """The rate is for each event, and may be set to millions: what waits would have no bound."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    log = logs.ClientLog(1_000_000, Clock())

    for _ in range(logs.MOST_HELD + 1):
        log.info("client_connected")

    assert logs.MOST_HELD + 1 == len(events(stream))


def test_each_event_has_a_rate_of_its_own() -> None:
    """One client that floods one kind of line would silence all others."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    log = logs.ClientLog(1, Clock())

    for _ in range(5):
        log.info("client_closed")
    log.info("client_connected")

    log.write_held()
    assert "client_connected" in events(stream)


def test_a_rate_of_zero_only_counts() -> None:
    """log.client_events_per_second = 0 would still write lines, or divide by zero."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    log = logs.ClientLog(0, Clock())

    log.info("client_closed")
    log.flush()

    assert ["log_lines_suppressed"] == events(stream)


@pytest.mark.parametrize("format", ["text", "json"])
def test_what_a_client_sent_is_written_up_to_200_characters(format: str) -> None:
    """One CONNECT with 60 000 bytes of names would be a line of 60 000 bytes, twenty times a second."""
    stream = io.StringIO()
    logs.configure("info", format, stream)
    name = "n" * 60_000

    structlog.get_logger().info("client_closed", client=name, detail=name.encode(), asked=[name, {"user": name}])

    assert 4 == stream.getvalue().count("n" * 200)
    assert "n" * 201 not in stream.getvalue()


def test_text_of_weir_itself_is_written_whole() -> None:
    """The reason of a crash, or of a file that cannot be read, would be cut off."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)

    structlog.get_logger().error("worker_died", last_output="t" * 5000, why="w" * 500)

    (line,) = lines(stream)
    assert (5000, 500) == (len(str(line["last_output"])), len(str(line["why"])))
