# What an operator asks of a worker in the test process.
from typing import Any

from broker.insight.operator_requests import operator_requests
from broker.insight.pending_answers import Arguments, PendingAnswer, PendingAnswers
from tests.inprocess import Broker

Outcome = tuple[object, str]  # the result, or why there is none


class Operator:
    """Asks *broker*, whose loop turns until the answer is there."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.pending = PendingAnswers(broker.clock)
        worker = broker.worker
        self._requests = operator_requests(
            worker.base, worker.protocol, worker.links.durable_store, worker.retained, self.pending
        )

    def ask(self, what: str, arguments: Arguments) -> Any:
        """The result. AssertionError: the request was refused, or there is no answer."""
        outcomes = self.begin(what, arguments)
        self.broker.settle()
        ((result, error),) = outcomes
        assert "" == error
        return result

    def begin(self, what: str, arguments: Arguments) -> list[Outcome]:
        """Ask; the list has the outcome as soon as there is one."""
        outcomes: list[Outcome] = []
        answer = self._requests[what](arguments)
        if isinstance(answer, PendingAnswer):
            answer.deliver_to(lambda result, error: outcomes.append((result, error)))
        else:
            outcomes.append((answer, ""))
        return outcomes
