# The log of a process: one line per event with its fields, to stderr, as text on a terminal and else as JSON. EVENTS.md
# lists the events.
#
# What happens per message is counted; what happens per connection is a line. As clients decide how many connections
# there are, lines that clients cause go through a ClientLog, which writes a limited number per event and second and
# counts the rest. A log must not take the broker down: if the stream is gone (a closed pipe, a full disk), lines are
# lost, and nothing else. Nor do lines grow with what a client sends: each field is cut, here and nowhere else.
#
# To write a line takes 20 us, and 100 in a worker that has just woken up, as the code is in no cache. So the lines of a
# ClientLog that tell of nothing wrong are written when the loop has sent what the clients wait for: of the time until
# CONNACK these were 0.1 ms of 1.1, and 0.2 of 2.8 for a session that comes from another worker.
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import structlog

LONGEST_FIELD: Final = 200  # characters: a client id, topic or user name may have 65 535
LONGEST_TEXT: Final = 16 * 1024  # characters of the fields in TEXTS
TEXTS: Final = frozenset({"exception", "last_output", "text", "why", "means"})  # written by Weir, Redis or an operator

SUMMARY_INTERVAL: Final = 1.0  # seconds between two log_lines_suppressed of one event
MOST_HELD: Final = 100  # lines of a ClientLog that wait to be written; a further one has all of them written

# A field may have text that a client chose. JSON escapes control characters; a terminal would execute them.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


def configure(
    level: str = "info",
    format: str = "auto",
    stream: TextIO | None = None,
    about: Mapping[str, object] | None = None,
) -> None:
    """Set up all logs of the process. *level* and *format* as in the configuration; *stream*: stderr by default.

    *about*: fields of every line, such as the node and the worker.
    """
    stream = stream or sys.stderr
    text = stream.isatty() if format == "auto" else format == "text"
    shared: list[structlog.types.Processor] = [
        structlog.processors.add_log_level,
        _stamped,
        _CommonFields(about or {}),
    ]
    structlog.configure(
        processors=shared + (_text(stream.isatty()) if text else _json()),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=LineWriter(stream),
        cache_logger_on_first_use=False,  # lines are rare; tests configure again
    )


def _stamped(logger: object, method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the time, unless the line was held, and has that of its event."""
    time = facts.get("timestamp") or datetime.now(UTC)
    facts["timestamp"] = time.isoformat().replace("+00:00", "Z")
    return facts


class _CommonFields:
    """Adds fields to every line."""

    def __init__(self, facts: Mapping[str, object]) -> None:
        self._facts = facts

    def __call__(self, logger: object, method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**self._facts, **facts}


def _text(colors: bool) -> list[structlog.types.Processor]:
    plain = structlog.dev.plain_traceback
    return [_shortened, _escaped, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]


def _json() -> list[structlog.types.Processor]:
    return [structlog.processors.format_exc_info, _shortened, _ordered, structlog.processors.JSONRenderer(default=str)]


def _shortened(logger: object, method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut the text in each field."""
    return {key: _cut(value, LONGEST_TEXT if key in TEXTS else LONGEST_FIELD) for key, value in facts.items()}


def _cut(value: Any, longest: int) -> Any:
    """*value* with texts of at most *longest* characters, also inside lists and dictionaries."""
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}\u2026"
    if isinstance(value, bytes | bytearray):
        return bytes(value[:longest])
    if isinstance(value, dict):
        return {key: _cut(one, longest) for key, one in value.items()}
    if isinstance(value, list):
        return [_cut(one, longest) for one in value]
    return value


def _ordered(logger: object, method: str, facts: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Put timestamp, level and event first, for people who read the JSON."""
    return {"timestamp": facts.pop("timestamp"), "level": facts.pop("level"), "event": facts.pop("event"), **facts}


def _escaped(logger: object, method: str, facts: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Make control characters visible, so that a client id cannot control the operator's terminal."""
    return {key: value.translate(_CONTROLS) if isinstance(value, str) else value for key, value in facts.items()}


class LineWriter:
    """Writes lines to a stream; lines that cannot be written are counted in `lost`. Also a structlog logger factory."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0

    def __call__(self, *args: object) -> "LineWriter":
        return self

    def msg(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self.lost += 1

    debug = info = warning = error = critical = msg


class _Bucket:
    """The lines of one event that may still be written: a token bucket with the tokens of one second."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._filled = now
        self.suppressed = 0
        self.summarized = now - SUMMARY_INTERVAL

    def take(self, now: float) -> bool:
        self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            self.suppressed += 1
            return False
        self._tokens -= 1
        return True


class ClientLog:
    """A log of events that clients cause: at most *rate* lines a second of each event; the rest is counted.

    Lines of the level info are written by `write_held()`, in order with all others of this log, and with the time of
    their event. *clock* is monotonic, in seconds. Event names come from Weir's code and not from clients, so there are
    few buckets.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._log = structlog.get_logger()
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self._held: deque[tuple[str, dict[str, object]]] = deque()  # of the level info: event and facts

    def info(self, event: str, **facts: object) -> None:
        self._write("info", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        self._write("warning", event, facts)

    def error(self, event: str, **facts: object) -> None:
        self._write("error", event, facts)

    def write_held(self) -> None:
        """Write the lines that are held. To be called when the loop has sent what is to be sent."""
        while self._held:
            event, facts = self._held.popleft()
            self._log.info(event, **facts)

    def flush(self) -> None:
        """Log how many lines of each event were suppressed. To be called about once a second, and at the end."""
        self.write_held()
        now = self._clock()
        for (level, event), bucket in self._buckets.items():
            self._summarize(level, event, bucket, now)

    def _write(self, level: str, event: str, facts: dict[str, object]) -> None:
        now = self._clock()
        bucket = self._buckets.get((level, event))
        if bucket is None:
            bucket = self._buckets[level, event] = _Bucket(self._rate, now)
        if bucket.take(now):
            if level == "info":
                facts["timestamp"] = datetime.now(UTC)
                self._held.append((event, facts))
            else:  # what is wrong is not held: it may have to do with the end of this process
                self.write_held()
                getattr(self._log, level)(event, **facts)
            if len(self._held) > MOST_HELD:
                self.write_held()
        if now - bucket.summarized >= SUMMARY_INTERVAL:
            self._summarize(level, event, bucket, now)

    def _summarize(self, level: str, event: str, bucket: _Bucket, now: float) -> None:
        if bucket.suppressed:
            self.write_held()
            getattr(self._log, level)("log_lines_suppressed", suppressed_event=event, lines=bucket.suppressed)
            bucket.suppressed = 0
            bucket.summarized = now
