# A shared subscription of APPLICATION clients. What is published with QoS 1 or 2 is appended once for each filter to a
# log that all groups of the filter read (shared_log.py), by the worker where it is published; so members here and
# elsewhere are offered nothing by the group. It is *durable* as long as any member, at any worker, is subscribed with
# QoS 1 or 2: these read the log. As other groups it is known to all workers, so each knows which filters have a log.
#
# What does not go through the log goes to a member as in any group: QoS 0; what is published while all members are
# subscribed with QoS 0; and what a member has left when its session ended (store/durable/returned.py).
from broker.overload.gate import Gate
from broker.routing.authority import Authoriser
from broker.routing.group_names import MARK
from broker.routing.shared import SharedGroup
from broker.routing.shared_backlog import SharedBacklog
from broker.routing.shared_log import SharedLogs
from broker.session.message import Message
from broker.session.subscription import Subscription


def new_group(
    share: bytes,
    filter: bytes,
    backlog: SharedBacklog,
    authoriser: Authoriser | None,
    here: int,
    logs: SharedLogs | None,
) -> SharedGroup:
    """The group with *share*, as group_names.py has it, and *filter*."""
    if logs is not None and share.startswith(MARK):
        return ApplicationGroup(share, filter, backlog, authoriser, here, logs)
    return SharedGroup(share, filter, backlog, authoriser, here)


class ApplicationGroup(SharedGroup):
    def __init__(
        self,
        share: bytes,
        filter: bytes,
        backlog: SharedBacklog,
        authoriser: Authoriser | None,
        here: int,
        logs: SharedLogs,
    ) -> None:
        super().__init__(share, filter, backlog, authoriser, here)
        self._logs = logs
        self.log = logs.log_of(filter)

    def publish(self, message: Message, now: float) -> bool:
        return (self.durable and message.qos > 0) or self.deliver(message, now)

    def store_gate(self) -> Gate | None:
        return self._logs.publish_gate() if self.durable else None

    def closed_gate(self) -> Gate | None:
        return None if self.durable else super().closed_gate()

    def join(self, subscription: Subscription) -> None:
        super().join(subscription)
        self._logs.joined(subscription)

    def leave(self, subscription: Subscription) -> None:
        super().leave(subscription)
        self._logs.left(subscription)

    def discard(self) -> None:
        super().discard()
        self._logs.forget(self.filter)

    def _is_durable(self, subscription: Subscription) -> bool:
        return subscription.qos > 0
