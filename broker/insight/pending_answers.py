# Answers to the supervisor that come later, as Redis is asked or told something first.
#
# The loop waits for none of them. Each has a deadline before that of the supervisor, so whoever asked learns what is
# missing instead of "no answer", and what Redis answers after that is ignored. At most MOST are under way: a Redis that
# does not answer must not make a worker keep ever more questions.
from collections import deque
from collections.abc import Callable
from typing import Any, Final

PATIENCE: Final = 3.0  # seconds; the supervisor waits for five
MOST: Final = 64  # the control socket serves 32 at once

Arguments = dict[str, Any]
Deliver = Callable[[object, str], None]  # the result as JSON can hold it, and why there is none: "" if there is one


class RequestRefused(Exception):
    """The request cannot be answered. Its text is one sentence that says why."""


class PendingAnswer:
    """Exactly one of `reply()` and `refuse()` counts, the first one."""

    def __init__(self, deadline: float, late: str) -> None:
        """*late*: the sentence for whoever asked, if nothing has come at the time *deadline*."""
        self.deadline = deadline
        self.done = False
        self.when_late: Callable[[], None] = _nothing  # ends what is done for it, at the deadline
        self._late = late
        self._result: object = None
        self._error = ""
        self._deliver: Deliver | None = None

    def deliver_to(self, deliver: Deliver) -> None:
        """Call *deliver* once there is an answer, at once if there is one."""
        self._deliver = deliver
        if self.done:
            deliver(self._result, self._error)

    def reply(self, result: object) -> None:
        self._finish(result, "")

    def refuse(self, why: str) -> None:
        """*why*: one sentence."""
        self._finish(None, why)

    def expire(self) -> None:
        """The deadline has passed."""
        if not self.done:
            self.when_late()
        self._finish(None, self._late)

    def _finish(self, result: object, error: str) -> None:
        if self.done:
            return
        self.done = True
        self._result, self._error = result, error
        if self._deliver is not None:
            self._deliver(result, error)


class PendingAnswers:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun: deque[PendingAnswer] = deque()  # in the order of their deadlines; some of them are done

    def begin(self, late: str) -> PendingAnswer:
        """An answer that will come. *late*: see `PendingAnswer`. RequestRefused: too many are under way."""
        self.expire()
        if len(self._begun) >= MOST:
            self._begun = deque([each for each in self._begun if not each.done])
        if len(self._begun) >= MOST:
            raise RequestRefused(f"{MOST} other requests wait for Redis; try again later.")
        pending = PendingAnswer(self._clock() + PATIENCE, late)
        self._begun.append(pending)
        return pending

    def expire(self) -> None:
        """Refuse those whose deadline has passed. To be called often."""
        now = self._clock()
        while self._begun and (self._begun[0].done or self._begun[0].deadline <= now):
            self._begun.popleft().expire()


def _nothing() -> None:
    pass
