# Conversations with workers in the test process, whose clock is turned by the conversation.
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st
from hypothesis.stateful import rule

from broker.config.schema import Config, Limits
from broker.mqtt.packets import Packet
from broker.reasons import DropReason
from tests.inprocess import Broker
from tests.model.conversation import Conversation
from tests.model.lines import Client
from tests.model.reference import Model
from tests.model.sessions import Session
from tests.model.vocabulary import NAMES, TOPICS, WINDOW

CONFIG = Config(limits=Limits(inflight=WINDOW))
WEEK = 7  # seconds

LAWFUL_DROPS = {
    reason.label
    for reason in (DropReason.OFFLINE_QOS0, DropReason.EXPIRED, DropReason.SESSION_ENDED, DropReason.NO_SHARED_MEMBER)
}


class WorkerConversation(Conversation):
    def __init__(self, model: Model | None = None, workers: Sequence[Broker] | None = None) -> None:
        """With one worker, if not with *workers* that are one node."""
        self.workers: Sequence[Broker] = [Broker(CONFIG)] if workers is None else workers
        self.clock = self.workers[0].clock
        super().__init__(model or Model(WINDOW), self.workers)

    @rule(weeks=st.sampled_from([1, 2, 6]))
    def wait(self, weeks: int) -> None:
        for _ in range(weeks):
            began = self.clock.now
            for second in range(1, WEEK + 1):
                # A timer is at most a tenth late. The last second is one that nothing is due at.
                self.clock.now = began + second + (0.0 if second == WEEK else 0.2)
                self.model.pass_second()
                self.everybody_has_what_it_is_owed()

    def _receive(self, names: Iterable[str] | None = None) -> None:
        """Everybody, or those of *names*, reads what there is."""
        self.workers[0].settle()
        for name in list(self.lines) if names is None else names:
            self._take(name)
            assert not self.lines[name].expected, f"{name} was not answered {self.lines[name].expected}"

    def _first_words(self, client: Client) -> list[Packet]:
        return client.receive()

    def _last_words(self, client: Client) -> list[Packet]:
        return client.receive()

    def _end_all(self) -> None:
        super()._end_all()
        for broker in self.workers:
            assert 0 == broker.outbound_budget.used
            assert 0 == broker.queue_budget.used

    def _close(self) -> None:
        for broker in self.workers:
            broker.close()

    def _compare_counts(self) -> None:
        for broker in self.workers:
            self._compare_counts_of(broker)

    def sessions_of(self, broker: Broker) -> list[Session]:
        """Those that are to be found there, whatever it says how many."""
        return [session for session in self.model.sessions.values() if broker.session(session.name)]

    def _compare_counts_of(self, broker: Broker) -> None:
        sessions = self.sessions_of(broker)
        subscriptions = [subscription for session in sessions for subscription in session.subscriptions.values()]
        groups = {(one.share, one.filter) for one in subscriptions if one.share}
        alone = sum(1 for one in subscriptions if not one.share)
        assert (alone + len(groups), len(groups)) == broker.routes.statistics()[1:]
        assert len(sessions) == broker.session_count()
        assert sum(1 for session in sessions if session.connected) == broker.connected
        broker.retained.expire(self.clock.now, len(TOPICS) + len(NAMES))
        assert len(self.model.retained()) == broker.retained.statistics().count
        dropped = {reason for reason, times in broker.counters.dropped_by_reason.items() if times}
        assert dropped <= LAWFUL_DROPS
        assert 0 == broker.counters.internal_errors
