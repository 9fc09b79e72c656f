# Where what clients publish goes with an inbound backbone: into a log, by the partition of its publisher. It is
# acknowledged when the log has it, and dispatched from there (inbound_dispatch.py). What is accepted, and at what
# price, is decided in publishing.py.
from typing import Final

from broker.overload.gate import Gate
from broker.protocol.retaining import Retaining
from broker.session.message import Message
from broker.session.run import Run
from broker.session.session import Session
from broker.store.inbound.log import InboundLog

FEW: Final = 16  # subscriptions that are looked at with each publish of their client


def tells_publisher(session: Session) -> bool:
    """Whether what *session* publishes may have to pass it by, as subscriptions of it are no local [MQTT-3.8.3-3]."""
    subscriptions = session.subscriptions
    if not subscriptions:
        return False
    return len(subscriptions) > FEW or any(subscription.no_local for subscription in subscriptions.values())


class InboundTarget:
    def __init__(self, log: InboundLog, retaining: Retaining) -> None:
        self.gates: Final = log.gates  # that each publish passes
        self._log = log
        self._retaining = retaining

    def free(self, session: Session) -> bool:
        """Whether what *session* publishes may be appended without being judged."""
        log = self._log
        return log.gate.free and log.closed_gate(log.partition_of(session.client_id)) is None

    def closed_gate(self, session: Session) -> Gate | None:
        """A gate that what *session* publishes has to wait for; None if there is none."""
        log = self._log
        return log.closed_gate(log.partition_of(session.client_id))

    def append_run(self, session: Session, run: Run, now: float) -> None:
        """Have *run* of *session* appended."""
        log = self._log
        partition = log.partition_of(session.client_id)
        if tells_publisher(session):
            for message in run.messages(b""):
                log.offer(partition, message, session.client_id, 0, now)
        else:
            log.offer_run(partition, run, now)

    def append(self, session: Session, message: Message, now: float) -> None:
        """Have *message* of *session* appended; its completion is settled when it is."""
        log = self._log
        publisher = session.client_id if message.retain or tells_publisher(session) else ""
        retained_at = self._retaining.accept(message.topic) if message.retain else 0
        log.offer(log.partition_of(session.client_id), message, publisher, retained_at, now)
