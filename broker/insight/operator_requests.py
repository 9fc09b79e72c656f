# Makes what answers the requests of operators who look at sessions, queues and retained messages, and repair them.
from collections.abc import Callable

from broker.insight.application_requests import ApplicationRequests
from broker.insight.pending_answers import Arguments, PendingAnswers
from broker.insight.queue_requests import QueueRequests
from broker.insight.retained_requests import RetainedRequests
from broker.insight.session_requests import SessionRequests
from broker.insight.shared_log_requests import SharedLogRequests
from broker.insight.warm_first import WarmFirst
from broker.protocol.essentials import Essentials
from broker.protocol.parts import ProtocolParts
from broker.routing.retained import Retained
from broker.store.durable.store import DurableStore


def operator_requests(
    base: Essentials,
    protocol: ProtocolParts,
    durable: DurableStore | None,
    retained: Retained,
    pending: PendingAnswers,
) -> dict[str, Callable[[Arguments], object]]:
    """What answers each request, by its name. *durable*: where sessions are stored, if they are."""
    warm = WarmFirst(protocol.cold, protocol.store, pending)
    sessions = SessionRequests(protocol.store, protocol.lifecycle, protocol.sessions, warm, pending, base.clock)
    queues = QueueRequests(protocol.store, durable, pending, base.clock, base.wall)
    messages = RetainedRequests(retained, protocol.publishing, durable, pending, base.clock, base.wall)
    applications = ApplicationRequests(protocol.store, sessions, durable, pending, base.wall)
    shared = SharedLogRequests(durable, pending, base.wall)
    return {
        "applications": applications.page,
        "application": applications.show,
        "application_reset": applications.reset,
        "shared_logs": shared.page,
        "shared_log_oldest": shared.oldest,
        "shared_log_reset": shared.reset,
        "sessions": sessions.page,
        "session": warm.of(sessions.show),
        "session_drop": warm.of(sessions.drop),
        "queue_page": warm.of(queues.page),
        "queue_purge": warm.of(queues.purge),
        "retained_page": messages.page,
        "retained_show": messages.show,
        "retained_clear": messages.clear,
    }
