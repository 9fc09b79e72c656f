# The requests about sessions: a list of them, everything about one, and its end.
#
# A session that is in memory has there what says how much waits for it, also if the messages are in Redis. Those in
# Redis alone are read for the list. It comes in pages as that of clients does (admin_requests.py).
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, cast

from broker.insight.pending_answers import Arguments, PendingAnswers
from broker.insight.warm_first import WarmFirst
from broker.mqtt.fields import read_length
from broker.mqtt.packets import V5
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.reasons import CloseReason
from broker.session.message import RELEASED
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.store.durable.queue import DurableQueue
from broker.store.sessions import SessionStore

PAGE: Final = 500  # sessions in one answer: about a millisecond
FILTERS: Final = 200  # of one session that are shown
LATE: Final = "The session has ended, but Redis has not removed it yet; the node repeats that until Redis answers."


class SessionRequests:
    def __init__(
        self,
        store: SessionStore,
        lifecycle: ConnectionLifecycle,
        sessions: SessionLifecycle,
        warm: WarmFirst,
        pending: PendingAnswers,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._sessions = sessions
        self._warm = warm
        self._pending = pending
        self._clock = clock

    def page(self, arguments: Arguments) -> object:
        """A page of sessions from *position* on whose client id contains *match*, and the position of the next page.

        *away*: only those without a connection.
        """
        position = cast(int, arguments["position"])
        match = cast(str, arguments["match"])
        away = cast(bool, arguments["away"])
        cold = self._warm.page("sessions", arguments, self.summary)
        if cold is not None:
            return cold
        page = list(islice(self._store.sessions(), position, position + PAGE))
        found = [each for each in page if match in each.client_id and not (away and each.outbox is not None)]
        following = position + PAGE if len(page) == PAGE else None
        return {"sessions": [self.summary(session) for session in found], "next": self._warm.after(following)}

    def show(self, arguments: Arguments) -> object:
        """Everything about the session of *client*; None if there is none."""
        session = self._store.find(cast(str, arguments["client"]))
        if session is None:
            return None
        facts = self.summary(session)
        shown = islice(session.subscriptions.values(), FILTERS)
        facts["filters"] = [_described(subscription) for subscription in shown]
        will = session.will
        facts["will_topic"] = None if will is None else will.topic.decode()
        facts["will_delay"] = 0 if will is None else will.delay
        sent = list(session.unacknowledged().values())
        facts["qos2_unreceived"] = len([each for each in sent if each.qos == 2 and each is not RELEASED])
        facts["qos2_uncompleted"] = len([each for each in sent if each is RELEASED])
        facts["qos2_unreleased"] = 0 if session.incoming is None else session.incoming.count
        facts["drops"] = dict(session.drops or {})
        facts["untold"] = 0 if session.losses is None else session.losses.untold()
        return facts

    def drop(self, arguments: Arguments) -> object:
        """End the session of *client*, as if its expiry had passed; false if there is none.

        Its client is disconnected (0x98), its will published [MQTT-3.1.2-8]. The answer comes when Redis has removed
        what is stored of the session.
        """
        session = self._store.find(cast(str, arguments["client"]))
        if session is None:
            return False
        answer = self._pending.begin(LATE)
        now, storage = self._clock(), session.storage
        connection = self._lifecycle.connection_of(session)
        if connection is not None:
            self._lifecycle.close(connection, CloseReason.SESSION_DROPPED, now)
        if not session.ended:
            self._sessions.end(session, now)
        if storage is None:
            answer.reply(True)
        else:
            storage.when_stored(lambda: answer.reply(True))
        return answer

    def summary(self, session: Session) -> dict[str, Any]:
        now = self._clock()
        connection = self._lifecycle.connection_of(session)
        user = session.principal.user
        left = self._sessions.expires(session) - now if connection is None else 0.0
        since = session.expiry - left if connection is None else now - connection.since
        return {
            "client": session.client_id,
            "user": None if user is None else user.decode(),
            "connected": connection is not None,
            "address": "" if connection is None else connection.address,
            "seconds": max(0.0, round(since, 1)),
            "expiry": session.expiry,
            "expires_in": max(0.0, round(left, 1)) if connection is None else None,
            "durable": session.storage is not None,
            "application": session.storage is not None and session.storage.application,
            "subscriptions": len(session.subscriptions),
            "waiting": session.waiting(),
            "waiting_bytes": waiting_bytes(session),
            "inflight": session.inflight(),
        }


def waiting_bytes(session: Session) -> int:
    """Bytes of the messages that wait for *session*, in memory or in Redis."""
    queue = session.queue()
    if queue is None:
        return 0
    return queue.waiting_bytes if isinstance(queue, DurableQueue) else queue.size


def _described(subscription: Subscription) -> dict[str, Any]:
    encoded = subscription.identifiers
    return {
        "filter": subscription.key().decode(),
        "qos": subscription.qos,
        "no_local": subscription.no_local,
        "retain_as_published": subscription.retain_as_published,
        "identifier": read_length(encoded, 1, len(encoded), V5)[0] if encoded else None,
    }
