# The names of groups of shared subscriptions. A share name may have two groups, as DEVICE and APPLICATION clients have
# one each, which get each message independently of each other (broker/DESIGN.md, section 6).
#
# Where a group is named by its share name and filter, also between workers, the share name of a group of APPLICATION
# clients begins with MARK, as no string of MQTT does. Where a list of messages is named by one text, in Redis, its key
# begins with APPLICATION_PREFIX in place of `$share/`: a filter has to be valid there.
from typing import Final

from broker.mqtt.topics import SHARE_PREFIX, split_share
from broker.session.subscription import Subscription

MARK: Final = b"\0"
APPLICATION_PREFIX: Final = b"$application/"


def share_of(subscription: Subscription, logs: bool) -> bytes:
    """The share name of the group that *subscription* is in. *logs*: there are some, for APPLICATION clients."""
    storage = subscription.session.storage
    return MARK + subscription.share if logs and storage is not None and storage.application else subscription.share


def share_name(share: bytes) -> bytes:
    """The share name without the mark."""
    return share[1:] if share.startswith(MARK) else share


def group_key(share: bytes, filter: bytes) -> bytes:
    """The key of a group, by its share name, which may be marked."""
    if share.startswith(MARK):
        return b"%b%b/%b" % (APPLICATION_PREFIX, share[1:], filter)
    return b"%b%b/%b" % (SHARE_PREFIX, share, filter)


def application_key(key: bytes) -> bytes:
    """The key of the group of APPLICATION clients that have the shared subscription *key*."""
    return APPLICATION_PREFIX + key[len(SHARE_PREFIX) :]


def is_shared(key: bytes) -> bool:
    """Whether *key*, of a subscription in its session, is that of a shared one."""
    return key.startswith(SHARE_PREFIX)


def is_group_key(key: bytes) -> bool:
    return key.startswith((SHARE_PREFIX, APPLICATION_PREFIX))


def split_group(key: bytes) -> tuple[bytes, bytes] | None:
    """(share name, filter) of the key of a group, marked if it is of APPLICATION clients; None: it is none."""
    if key.startswith(APPLICATION_PREFIX):
        found = split_share(SHARE_PREFIX + key[len(APPLICATION_PREFIX) :])
        return None if found is None else (MARK + found[0], found[1])
    return split_share(key)
