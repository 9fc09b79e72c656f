# The log: one line per event with its facts, to stderr; text for a person at a terminal, else JSON.
#
# What happens per message is a counter, what happens per connection is a line. But clients decide how many
# connections there are, so lines that they can cause go through a ClientLog: so many of each event a second,
# and the rest is counted and told in one line a second. A log must never be the way to take a broker down,
# hence also: a stream that is gone (a closed pipe, a full disk) costs lines, not connections.
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, TextIO

import structlog

SUMMARY_INTERVAL: Final = 1.0  # seconds between two lines that tell how many lines were left out

# What a client chose may be in a fact. JSON escapes it; a terminal would obey it.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


def configure(
    level: str = "info",
    format: str = "auto",
    stream: TextIO | None = None,
    about: Mapping[str, object] | None = None,
) -> None:
    """Set up every log of the process, for good: *level* and *format* as in the configuration; default stderr.

    *about*: what every line says of the process, as its node and its worker.
    """
    stream = stream or sys.stderr
    text = stream.isatty() if format == "auto" else format == "text"
    shared: list[structlog.types.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Named(about or {}),
    ]
    structlog.configure(
        processors=shared + (_text(stream.isatty()) if text else _json()),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=LineWriter(stream),
        cache_logger_on_first_use=False,  # lines are rare; tests configure again
    )


class _Named:
    """Adds the same facts to every line."""

    def __init__(self, facts: Mapping[str, object]) -> None:
        self._facts = facts

    def __call__(self, logger: object, method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**self._facts, **facts}


def _text(colors: bool) -> list[structlog.types.Processor]:
    plain = structlog.dev.plain_traceback
    return [_harmless, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]


def _json() -> list[structlog.types.Processor]:
    return [structlog.processors.format_exc_info, _ordered, structlog.processors.JSONRenderer(default=str)]


def _ordered(logger: object, method: str, facts: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """The same three keys first in every line, for the eyes that read JSON after all."""
    return {"timestamp": facts.pop("timestamp"), "level": facts.pop("level"), "event": facts.pop("event"), **facts}


def _harmless(logger: object, method: str, facts: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Control characters made visible, so that a client id cannot paint on the operator's terminal."""
    return {key: value.translate(_CONTROLS) if isinstance(value, str) else value for key, value in facts.items()}


class LineWriter:
    """Writes finished lines to a stream; what cannot be written is lost and counted. structlog's logger factory too."""

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
    """How many lines of one event may still be written: a token bucket that holds one second."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._filled = now
        self.left_out = 0
        self.told = now - SUMMARY_INTERVAL

    def take(self, now: float) -> bool:
        self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            self.left_out += 1
            return False
        self._tokens -= 1
        return True


class ClientLog:
    """A log of events that clients cause: at most *rate* lines a second of each event, the rest counted.

    *clock* gives seconds that only rise. Event names come from our code, never from a client, so there are few.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._log = structlog.get_logger()
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def info(self, event: str, **facts: object) -> None:
        self._write("info", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        self._write("warning", event, facts)

    def error(self, event: str, **facts: object) -> None:
        self._write("error", event, facts)

    def flush(self) -> None:
        """Tell what was left out of every event. Call it about once a second, and at the end."""
        now = self._clock()
        for (level, event), bucket in self._buckets.items():
            self._summarize(level, event, bucket, now)

    def _write(self, level: str, event: str, facts: dict[str, object]) -> None:
        now = self._clock()
        bucket = self._buckets.get((level, event))
        if bucket is None:
            bucket = self._buckets[level, event] = _Bucket(self._rate, now)
        if bucket.take(now):
            getattr(self._log, level)(event, **facts)
        if now - bucket.told >= SUMMARY_INTERVAL:
            self._summarize(level, event, bucket, now)

    def _summarize(self, level: str, event: str, bucket: _Bucket, now: float) -> None:
        if bucket.left_out:
            getattr(self._log, level)("log_lines_suppressed", suppressed_event=event, lines=bucket.left_out)
            bucket.left_out = 0
            bucket.told = now
