# The log as every part of Weir sees it. `insight/logs.py` sets up the one that a process uses; tests pass their own.
from typing import Protocol


class Log(Protocol):
    """Writes one line per event: the name of the event (listed in `insight/EVENTS.md`) and its facts."""

    def info(self, event: str, **facts: object) -> None: ...
    def warning(self, event: str, **facts: object) -> None: ...
    def error(self, event: str, **facts: object) -> None: ...
