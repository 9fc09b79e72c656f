# The answers to publishes: PUBACK and PUBREC, what they say, and when they leave.
#
# An answer leaves at once when all receivers of its publish are done, and no answer of the connection waits. Else it
# waits in the AnswerQueue of the connection (delivery/completion.py), which is made here.
from typing import Final

from broker.delivery.completion import AnswerQueue, Completion, SourcePause
from broker.metrics.counters import Counters
from broker.metrics.latency import Latencies
from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, PUBREC, V5, Ack, Properties
from broker.mqtt.properties import REASON_STRING, USER_PROPERTY
from broker.overload.admit import Verdict
from broker.overload.quotas.quota import QuotaExceeded
from broker.protocol.connection import Connection
from broker.protocol.handshake import RETRY_AFTER
from broker.reasons import PublishRefusal
from broker.session.session import Session

PUBACK_2: Final = b"\x40\x02"  # the fixed header of one without a code
PUBREC_2: Final = b"\x50\x02"


class PublishAnswers:
    """Writes answers, in the order of their publishes; at most *limit* of a connection wait before it is paused."""

    def __init__(self, counters: Counters, latencies: Latencies, limit: int, source_pause: SourcePause) -> None:
        self._counters = counters
        self._latencies = latencies
        self._limit = limit
        self._source_pause = source_pause

    def write(self, connection: Connection, answer: bytes, now: float) -> None:
        """Answer a publish that was not delivered: it was refused, or had been delivered before."""
        if connection.answers is None:
            self._counters.answers_sent += 1
            connection.outbox.answer(answer)
        else:
            self.write_in_order(connection, None, answer, now)

    def write_in_order(self, connection: Connection, completion: Completion | None, answer: bytes, now: float) -> None:
        """Write *answer* when *completion* is done, behind the answers that wait."""
        answers = connection.answers
        if answers is None:
            answers = connection.answers = AnswerQueue(
                connection.outbox, self._counters, self._latencies, self._limit, self._source_pause
            )
        elif completion is None and answers.count == 0:
            self._counters.answers_sent += 1
            connection.outbox.answer(answer)
            connection.acknowledged += 1
            return
        answers.add(completion, answer, connection.read_at, now)


def keep_unanswered(session: Session, completions: list[Completion]) -> None:
    """*completions* were not answered before their connection ended: remember those of QoS 2 for *session*.

    A client that sends such a publish again must not be told that it is safe before it is.
    """
    for completion in completions:
        if completion.pending and completion.answer[:1] == PUBREC_2[:1]:
            if session.unanswered is None:
                session.unanswered = {}
            session.unanswered[completion.answer[2] << 8 | completion.answer[3]] = completion


def take_unanswered(session: Session, packet_id: int) -> Completion | None:
    """What the answer to the QoS 2 publish *packet_id*, which was sent again, waits for; None: nothing."""
    if session.unanswered is None:
        return None
    completion = session.unanswered.pop(packet_id, None)
    if not session.unanswered:
        session.unanswered = None
    return None if completion is None or not (completion.pending or completion.abandoned) else completion


def redeliver_unanswered(session: Session) -> None:
    """*session* goes to another worker, which does not know what its publishes of QoS 2 wait for.

    Those that have a token are delivered once more there, if the client sends them again: no receiver takes them twice.
    """
    for packet_id, completion in (session.unanswered or {}).items():
        if completion.token and session.incoming is not None:
            session.incoming.discard(packet_id)


def encode_answer(connection: Connection, qos: int, identifier: bytes, code: int) -> bytes:
    """The PUBACK or PUBREC for a publish [MQTT-3.3.4-1], under its packet id [MQTT-2.2.1-5]; 3.x has no codes.

    No message of QoS 1 is remembered: the next publish with its id is a new one [MQTT-4.3.2-4], [MQTT-4.3.2-5],
    [MQTT-4.3.3-8]. The answer has no properties, so that it fits any maximum packet size: [MQTT-3.4.2-2] to
    [MQTT-3.4.2-3], [MQTT-3.5.2-2] to [MQTT-3.5.2-3].
    """
    if code and connection.version == V5:
        return b"%b%b%b" % (b"\x40\x03" if qos == 1 else b"\x50\x03", identifier, bytes((code,)))
    return (PUBACK_2 if qos == 1 else PUBREC_2) + identifier


def encode_refusal(
    connection: Connection, qos: int, identifier: bytes, reason: PublishRefusal, verdict: Verdict, now: float
) -> bytes:
    """The PUBACK or PUBREC of 5.0 for a publish that is refused, with a reason string unless the client declined those.

    [MQTT-3.4.2-2], [MQTT-3.4.2-3], [MQTT-3.5.2-2], [MQTT-3.5.2-3]: it fits the client's maximum packet size.
    """
    short = encode_answer(connection, qos, identifier, reason.code)
    session = connection.session
    if session is None or not connection.wants_reasons:
        return short
    words = reason.words
    properties: Properties = {}
    if isinstance(verdict, QuotaExceeded):
        words = verdict.words()
        properties[USER_PROPERTY] = [(RETRY_AFTER, str(verdict.retry_after(now)))]
    properties[REASON_STRING] = words
    packet_id = identifier[0] << 8 | identifier[1]
    long = encode(Ack(PUBACK if qos == 1 else PUBREC, packet_id, reason.code, properties), V5)
    return short if session.maximum_packet and len(long) > session.maximum_packet else long
