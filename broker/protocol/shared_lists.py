# The lists of messages that wait for members of shared subscriptions, as a worker with its limits and its log has them.
from functools import partial

from broker.log import Log
from broker.protocol.essentials import Essentials
from broker.routing.group_names import share_name
from broker.routing.shared_backlog import SharedBacklog
from broker.session.queue import MessageBudget


def shared_backlog(base: Essentials, budget: MessageBudget) -> SharedBacklog:
    """An empty backlog. Its messages count in *budget*, as those of the queues of sessions do."""
    limits = base.config.limits
    full = partial(_log_full, base.client_log)
    return SharedBacklog(limits.queue, limits.queue_bytes, budget, base.counters, base.reactor.wake, full)


def _log_full(log: Log, share: bytes, filter: bytes) -> None:
    log.warning("shared_subscription_full", share=share_name(share).decode(), filter=filter.decode())
