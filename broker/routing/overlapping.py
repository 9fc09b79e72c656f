# Overlapping subscriptions: several filters of one session that match the same topic.
#
# The session gets one copy, at the highest QoS [MQTT-3.3.4-2] and with the identifiers of all of them [MQTT-3.3.4-4].
# MQTT also allows a copy for each filter, which multiplies the traffic of careless clients. Other brokers do one or the
# other, so clients cope with both.
from typing import Final

from broker.routing.filters import matches
from broker.session.subscription import Subscription

EVERYONE: Final = 0
OTHERS: Final = 1  # not the publisher itself: no local [MQTT-3.8.3-3]
SELF: Final = 2  # the publisher alone: what is left of overlapping subscriptions of which some are no local

FEW: Final = 16  # subscriptions of one session that are compared with a topic one by one

Kind = tuple[int, bool, bytes, int]  # (QoS, retain as published, identifiers, audience) of a receiver


def audience(subscription: Subscription) -> int:
    return OTHERS if subscription.no_local else EVERYONE


def overlaps(subscription: Subscription) -> bool:
    """Whether its session has, or may have, another filter that matches the topic of *subscription*."""
    others = subscription.session.subscriptions
    if len(others) > FEW:
        return True
    topic = subscription.filter
    for other in others.values():
        if other is not subscription and not other.share and matches(other.filter, topic):
            return True
    return False


def merged(subscriptions: list[Subscription]) -> list[Kind]:
    """The kinds of receiver that a session with *subscriptions* to one topic is.

    There are two if some subscriptions are no local: one for messages of other clients, one for its own messages.
    """
    foreign = [s for s in subscriptions if not s.no_local]
    if foreign and len(foreign) < len(subscriptions):
        return [_merge(foreign, SELF), _merge(subscriptions, OTHERS)]
    return [_merge(subscriptions, EVERYONE if foreign else OTHERS)]


def _merge(subscriptions: list[Subscription], whom: int) -> Kind:
    qos = 0
    retain_as_published = False
    identifiers = b""
    for subscription in subscriptions:
        qos = max(qos, subscription.qos)
        retain_as_published = retain_as_published or subscription.retain_as_published
        identifiers += subscription.identifiers
    return qos, retain_as_published, identifiers, whom
