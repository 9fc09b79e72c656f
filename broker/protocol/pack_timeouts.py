# What follows if an APPLICATION client does not acknowledge in time: TBMQ's strategies, within what MQTT allows.
#
# The time of a pack is that of its oldest message that is not done, as packs overlap: what follows it need not wait for
# the whole pack. With RETRY_ALL a client of MQTT 3 is sent all again that it has not acknowledged. One of MQTT 5 is
# disconnected, as nothing may be sent again over the same connection [MQTT-4.4.0-1]; its next one gets it. After the
# last retry the client is disconnected, or the messages are dropped. With SKIP_ALL they are dropped at once.
#
# A PUBCOMP that does not come keeps the packet id, and nothing is left to drop: then the client is disconnected.
from broker.config.applications import SKIP_ALL, Application
from broker.mqtt.packets import V5
from broker.protocol.connection import Connection
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.reasons import CloseReason, DropReason
from broker.session.session import Session
from broker.session.skipping import give_up, send_again
from broker.store.durable.adoption import client_id_of
from broker.store.durable.application_queue import ApplicationQueue
from broker.store.sessions import SessionStore


class PackTimeouts:
    def __init__(self, settings: Application, store: SessionStore, lifecycle: ConnectionLifecycle) -> None:
        self._settings = settings
        self._store = store
        self._lifecycle = lifecycle

    def overdue(self, queue: ApplicationQueue, now: float) -> None:
        """The oldest message that was sent from *queue* was not done in time."""
        session = self._store.find(client_id_of(queue.client))
        if session is None or session.queue() is not queue:
            return
        connection = self._lifecycle.connection_of(session)
        if connection is None:
            return
        settings, count = self._settings, queue.count_time_out(now)
        exhausted = settings.ack_retries > 0 and count > settings.ack_retries
        if settings.ack_strategy == SKIP_ALL or (exhausted and settings.commit_after_retries):
            self._give_up(session, connection, now)
        elif exhausted or session.version == V5:
            if exhausted:
                queue.retries = 0
            self._lifecycle.close(connection, CloseReason.PACK_TIMEOUT, now)
        else:
            send_again(session, now)

    def _give_up(self, session: Session, connection: Connection, now: float) -> None:
        if not give_up(session, DropReason.PACK_TIMEOUT, now):
            self._lifecycle.close(connection, CloseReason.PACK_TIMEOUT, now)
