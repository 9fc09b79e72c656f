# The topics of filters that no APPLICATION client shares any more: each is deleted some time after its last group has
# ended, so clients that subscribe to ever new filters do not make topics without end.
#
# A group may begin while its topic is being deleted, at whichever worker, and a deletion may be carried out late. So a
# topic is retired first, by its identity, in Redis (leases.lua): that succeeds only if there is no group of its filter,
# and no group begins in a topic that is retired. Whoever finds such a topic has it deleted, once more perhaps, and
# makes another one (`SharedTopics.replace()`). Messages that are appended meanwhile by a worker which has not learnt
# that the last group has ended are for nobody.
#
# A topic stays, although no client shares its filter, until a group of its filter has begun and ended again; retention
# deletes what is in it: if this worker ends before its time has come, and if the log forbids to delete topics.
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from broker.log import Log
from broker.reasons import LogFailure, StoreFailure
from broker.store.durable.log_topics import shared_topic_of
from broker.store.logs.port import LogLink
from broker.store.logs.topics import LogError, TopicDescription

LINGER: Final = 60.0  # seconds after its last group: a service that subscribes anew finds its topic
MOST: Final = 1000  # topics that linger: beyond it the oldest do not
RETRY: Final = 5.0  # seconds until what has failed is tried again

Call = Callable[[bytes, list[bytes], Callable[[object, StoreFailure | None], None]], None]


class UnusedTopics:
    def __init__(
        self,
        link: Callable[[], LogLink],
        call: Call,
        clock: Callable[[], float],
        wake: Callable[[], None],
        log: Log,
    ) -> None:
        """*call* calls leases.lua for a filter, with an operation and its words. *wake* has `tick()` called."""
        self.left = 0  # topics that stay, as they may not be deleted
        self._link = link
        self._call = call
        self._clock = clock
        self._wake = wake
        self._log = log
        self._waiting: dict[bytes, float] = {}  # by filter: not before this time
        self._deleting = b""  # one of them is being deleted; no filter is empty
        self._not_before = -inf

    def add(self, filter: bytes) -> None:
        """The last group of *filter* has ended."""
        self._waiting.pop(filter, None)
        self._waiting[filter] = self._clock() + LINGER
        self._wake()

    def tick(self, now: float) -> float:
        """Delete the topic that is due; when the next one will be."""
        if not self._waiting or self._deleting:
            return inf
        filter, due = next(iter(self._waiting.items()))
        if len(self._waiting) > MOST:
            due = now
        due = max(due, self._not_before)
        if now < due:
            return due
        del self._waiting[filter]
        self._deleting = filter
        self._link().describe(shared_topic_of(filter), partial(self._found, filter))
        return inf

    def _found(self, filter: bytes, found: TopicDescription | None, error: LogError | None) -> None:
        if error is not None:
            self._try_again(filter)
        elif found is None or not found.log:  # without an identity it might be another one by then
            self._go_on()
        else:
            self._call(filter, [b"retire", found.log], partial(self._retired, filter, found.log))

    def _retired(self, filter: bytes, log: bytes, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:
            self._try_again(filter)
        elif reply != 1:  # a group has begun
            self._go_on()
        else:
            self._link().delete(shared_topic_of(filter), log, partial(self._deleted, filter))

    def _deleted(self, filter: bytes, error: LogError | None) -> None:
        topic = shared_topic_of(filter)
        if error is None:
            self._go_on()
            self._log.info("shared_log_deleted", filter=filter.decode(errors="replace"), topic=topic)
        elif error.failure is LogFailure.FORBIDDEN:
            self.left += 1
            if self.left == 1:
                self._log.warning("shared_log_left", topic=topic, why=str(error))
            self._call(filter, [b"keep"], partial(self._kept, filter))
        else:
            self._try_again(filter)

    def _kept(self, filter: bytes, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:  # groups that begin ask for the same
            self._not_before = self._clock() + RETRY
        self._go_on()

    def _go_on(self) -> None:
        """Go on with the next one."""
        self._deleting = b""
        self._wake()

    def _try_again(self, filter: bytes) -> None:
        self._not_before = self._clock() + RETRY
        self._waiting.setdefault(filter, self._not_before)
        self._go_on()
