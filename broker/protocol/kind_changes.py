# A client may change its kind: by the rules of the configuration (config/applications.py) it is DEVICE or APPLICATION
# with each CONNECT, and a session that goes on may have been that of the other kind until then.
#
# DEVICE to APPLICATION: at once. What waits in Redis stays there and is sent first; what is published from then on is
# in a log. The CONNECT waits until the queue of the session is stored, a transaction at most, as a new queue goes on
# with it (ApplicationQueue.follow()).
#
# APPLICATION to DEVICE: when the log is empty. Until then the session goes on as before, and what is published goes
# through its log, or it would overtake what is there. Once its client has been passed on all of the log, the queue
# parts from it (ApplicationQueue.part_now()), and the topic is deleted. A client that is never that quick keeps its
# log, and so does one that is away: it is tried again with its next CONNECT. The roads not taken: to move the log to
# Redis in one piece, as it may be a thousand times what may wait there; and to drop it, as TBMQ does.
#
# Shared subscriptions are in other groups then (routing/group_names.py), as if the client had unsubscribed and had
# subscribed again: what was passed on to the session stays with it, and what the group has left is for its other
# members. If there is none, that group has ended.
#
# What is stored of the session says its kind: there is a field LOG, or there is none. So a crash changes nothing.
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.log import Log
from broker.protocol.client_kinds import ClientKinds, kind_of
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.subscribing import Subscribing
from broker.session.session import Session
from broker.store.durable.adoption import client_id_of
from broker.store.durable.application_queue import ApplicationQueue
from broker.store.durable.queue import DurableQueue
from broker.store.durable.record import SessionRecord
from broker.store.sessions import SessionStore

NO_LOGS: Final = "no table of application.clients is left, and nothing reads its log"
TOO_MANY: Final = "as many sessions have logs as application.sessions allows"
TOO_MANY_SHARED: Final = "it has more shared subscriptions than application.shared_filters allows"
NOT_STORED: Final = "sessions cannot be stored now"


class KindChanges:
    def __init__(
        self,
        sessions: SessionLifecycle,
        subscribing: Subscribing,
        lifecycle: ConnectionLifecycle,
        store: SessionStore,
        log: Log,
    ) -> None:
        self._sessions = sessions
        self._subscribing = subscribing
        self._lifecycle = lifecycle
        self._store = store
        self._log = log

    def under_way(self, session: Session) -> bool:
        """Whether a client of *session* has to wait, as its queue is changed, and another one waits already."""
        queue = session.queue()
        return isinstance(queue, ApplicationQueue) and queue.moves()

    def wanted(self, session: Session, application: bool, kinds: ClientKinds, now: float) -> bool:
        """Whether `begin_log()` is to be called for *session*, whose client is an *application* by its CONNECT, or not.

        A session that has a log is told whether to leave it.
        """
        record = session.storage
        if not isinstance(record, SessionRecord):
            return False
        queue = session.queue()
        if record.application:
            if isinstance(queue, ApplicationQueue):
                queue.part(not application)
            elif not application:
                self._kept(session, NO_LOGS)
            return False
        if not application:
            return False
        why = self._sessions.log_trouble()
        if not why and self._store.count_applications() >= kinds.most:
            why = TOO_MANY
        if not why and record.shared_subscriptions() > self._subscribing.shared_filters:
            why = TOO_MANY_SHARED
        if not why and not (record.may_have_log() and self._sessions.may_begin(session.expiry, now)):
            why = NOT_STORED
        if why:
            self._kept(session, why)
        return not why

    def _kept(self, session: Session, why: str) -> None:
        self._log.warning("client_kind_kept", client=session.client_id, kind=kind_of(session), why=why)

    def begin_log(self, session: Session, then: Callable[[], None]) -> None:
        """*session*, whose client is not connected, has a log from now on; call *then* once it may be connected.

        *then* is not called if the session ends before.
        """
        record = session.storage
        assert isinstance(record, SessionRecord)
        former: list[DurableQueue | None] = []
        self._subscribing.regroup(session, partial(_begin_log, session, record, former))
        self._changed(session)
        queue = session.queue()
        if former[0] is None or not isinstance(queue, ApplicationQueue):
            then()
        else:
            queue.follow(former[0], then)

    def drained(self, queue: ApplicationQueue, now: float) -> None:
        """All of the log of *queue* was passed on: leave it."""
        session = self._store.find(client_id_of(queue.client))
        if session is None or session.queue() is not queue or not isinstance(session.storage, SessionRecord):
            return
        self._subscribing.regroup(session, session.storage.change_to_device)
        queue.part_now(now)
        self._sessions.limit(session)
        connection = self._lifecycle.connection_of(session)
        if connection is not None:
            self._lifecycle.choose_flushing(connection, session)
        self._changed(session)
        session.pump(now)

    def _changed(self, session: Session) -> None:
        self._store.keep(session)  # it counts the sessions with logs
        self._log.info("client_kind_changed", client=session.client_id, kind=kind_of(session))


def _begin_log(session: Session, record: SessionRecord, former: list[DurableQueue | None]) -> None:
    former.append(record.change_to_application())
    session.renew_queue()
