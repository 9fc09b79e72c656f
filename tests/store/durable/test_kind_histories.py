# Histories of a session whose client changes its kind, each from one seed: what was acknowledged is never lost, and
# comes in order, whether it waits in Redis or in a log.
#
# They are those of test_simulation.py: a worker that is killed, a connection that is cut, a server that is full. Here
# the client is a DEVICE or an APPLICATION from one connection to the next, and the log stores, tells and gives what it
# was asked for when it likes.
import os
from functools import partial

import pytest

from broker.store.durable.application_queue import ApplicationQueue
from tests.store.durable.durable_worker import DurableWorker
from tests.store.durable.model import ModelRedis
from tests.store.durable.model_log import ModelLog
from tests.store.durable.test_simulation import STEPS, History

pytestmark = pytest.mark.interpreted

HISTORIES = int(os.environ.get("WEIR_HISTORIES", "120"))
PASSED = 5  # messages that are passed on at once


def leave_log(worker: DurableWorker, queue: ApplicationQueue, now: float) -> None:
    """What protocol/kind_changes.py does when the log is empty."""
    worker.owner.record.change_to_device()
    queue.part_now(now)
    worker.session.pump(now)


class KindHistory(History):
    def __init__(self, seed: int) -> None:
        self.log = ModelLog()
        self.changes = {"application": 0, "device": 0}
        self.ending = False  # the client keeps its kind
        super().__init__(seed)
        self.lasting, self.ttl, self.replica = [0.0], 600.0, None
        self.worker = self.start(ModelRedis(), 1000.0)
        self.redis = self.worker.redis
        self.connect()

    def start(self, redis: ModelRedis, now: float, expects: bool = False) -> DurableWorker:
        worker = DurableWorker(
            redis, self.workers, now, expects=expects, log=self.log, passed=PASSED, device=not expects
        )
        worker.store.log_hooks.drained = partial(self.drained, worker)
        return worker

    def drained(self, worker: DurableWorker, queue: ApplicationQueue, now: float) -> None:
        assert worker.owner.record.present_queue() is queue
        self.changes["device"] += 1
        leave_log(worker, queue, now)

    def connect(self) -> None:
        """The client comes, of some kind; it waits while the session is changed."""
        worker = self.worker
        record, queue = worker.owner.record, worker.owner.record.present_queue()
        if queue is not None and queue.moves():
            return
        application = record.application if self.ending else self.random.random() < 0.5
        worker.disconnect()
        self.unacknowledged = []
        self.to_complete = []
        if isinstance(queue, ApplicationQueue) and not queue.parted:
            queue.part(not application)
        elif application and not record.application and record.may_have_log():
            self.changes["application"] += 1
            former = record.change_to_application()
            worker.session.renew_queue()
            queue = record.queue()
            assert isinstance(queue, ApplicationQueue)
            if former is not None:
                queue.follow(former, lambda: None)
            if queue.moves():
                return
        super().connect()
        if self.random.random() < 0.4:  # the client is quick for a while
            for _ in range(30):
                self.read()
                self.acknowledge(1000)
                self.publish(self.random.choice([0, 0, 0, 0, 1]))
                self.worker.turn()

    def ends(self, worker: DurableWorker) -> None:
        super().ends(worker)
        worker.link.end(self.random.choice([0, 1, 100]), 0)

    def move(self) -> None:
        pass  # it goes on where it is

    def step(self) -> None:
        link, now, random = self.worker.link, self.worker.now, self.random
        link.answer(random.choice([0, 1, 5]))
        link.store(random.choice([0, 1, 5]), random.choice([1, 3]))
        link.tell(now, random.choice([0, 1, 5]))
        link.give(now, random.choice([0, 1, 5]))
        if random.random() < 0.01:
            link.restart()
        super().step()

    def look(self) -> None:
        pass  # some of it is in the log

    def finish(self) -> None:
        self.ending = True
        self.redis.server.full = False
        queue = self.worker.owner.record.present_queue()
        self.worker.until(lambda: queue is None or not queue.moves())
        super().finish()

    def at_rest(self) -> bool:
        worker = self.worker
        return super().at_rest() and worker.link.idle() and worker.budget.used == 0


@pytest.mark.parametrize("part", range(4))
def test_what_was_acknowledged_is_delivered_in_order_whatever_the_kind(part: int) -> None:
    """A change of kind would lose messages, deliver them twice, or have them overtake each other."""
    changes = {"application": 0, "device": 0}
    for seed in range(part * HISTORIES // 4, (part + 1) * HISTORIES // 4):
        history = KindHistory(seed)
        try:
            for _ in range(STEPS):
                history.step()
            history.finish()
        except Exception as error:
            raise AssertionError(f"history {seed}") from error
        for name, count in history.changes.items():
            changes[name] += count

    assert min(changes.values()) > HISTORIES // 8
