# A pack that is under way to a log, and the publishes that wait for it: what all kinds of packs have in common.
from abc import abstractmethod

from broker.delivery.completion import Completion
from broker.store.logs.port import Appender
from broker.store.logs.topics import LogError


class PackAppender(Appender):
    def __init__(self, completions: list[Completion]) -> None:
        """*completions*: of the publishes in the pack that are answered."""
        self._completions = completions

    @abstractmethod
    def stored(self, offset: int, now: float) -> None: ...

    @abstractmethod
    def refused(self, error: LogError, now: float) -> None: ...

    def late(self, now: float) -> None:
        for completion in self._completions:
            completion.needs_long(log=True)

    def _settle(self, now: float) -> None:
        for completion in self._completions:
            completion.settle(now)
