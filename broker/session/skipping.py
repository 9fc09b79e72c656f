# What was sent to a client and is not acknowledged in time: sent again, or given up.
from broker.reasons import DropReason
from broker.session.message import RELEASED, Message
from broker.session.session import Session


def send_again(session: Session, now: float) -> int:
    """Send again, marked as duplicates, what was sent over this connection and is not acknowledged; how many.

    Only for a client of MQTT 3: in MQTT 5 nothing is sent again over the same connection [MQTT-4.4.0-1]. 0: the last
    time is not over yet, as the client has not taken all of it.
    """
    count = len(session.unacknowledged())
    if session.inflight() > count:
        return 0
    session.resume(now)
    return count


def give_up(session: Session, reason: DropReason, now: float) -> int:
    """Drop what was sent and is not acknowledged, for *reason*; how many messages.

    A message of QoS 2 may be at its client, without a PUBREC: PUBREL is sent for it, and its packet id is free with
    PUBCOMP, as the client would take another message under that id for the same one. So it is for those with a PUBREC:
    they are not dropped, and wait for PUBCOMP.
    """
    kept: dict[int, Message] = {}
    dropped: list[tuple[int, Message]] = []
    released: list[int] = []
    for packet_id, message in session.unacknowledged().items():
        if message is RELEASED:
            kept[packet_id] = message
        elif message.qos == 2:
            kept[packet_id] = RELEASED
            released.append(packet_id)
        else:
            dropped.append((packet_id, message))
    count = len(dropped) + len(released)
    if not count:
        return 0
    session.restore(kept)
    queue = session.queue()
    for packet_id, message in dropped:
        if queue is not None:
            queue.done(packet_id, message, now)
    for packet_id in released:
        session.released(packet_id)
    session.queue_dropped(reason, count)
    session.pump(now)
    return count
