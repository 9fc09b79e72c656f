# Makes what answers the requests of operators who look at sessions, queues and retained messages, and repair them.
from collections.abc import Callable

from broker.insight.pending_answers import Arguments, PendingAnswers
from broker.insight.session_requests import SessionRequests
from broker.protocol.essentials import Essentials
from broker.protocol.parts import ProtocolParts


def operator_requests(
    protocol: ProtocolParts, base: Essentials, pending: PendingAnswers
) -> dict[str, Callable[[Arguments], object]]:
    """What answers each request, by its name."""
    sessions = SessionRequests(protocol.store, protocol.lifecycle, protocol.sessions, pending, base.clock)
    return {
        "sessions": sessions.page,
        "session": sessions.show,
        "session_drop": sessions.drop,
    }
