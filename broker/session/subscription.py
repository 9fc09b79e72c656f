# What a session has subscribed to, and what waits at its worker for its shared subscriptions.
from typing import TYPE_CHECKING

from broker.mqtt.topics import SHARE_PREFIX
from broker.session.subscriber import Subscriber

if TYPE_CHECKING:
    from broker.session.session import Session


class Subscription(Subscriber):
    """One filter of one session, with its options (3.8.3). *share* is the share name, b"" if it is not shared."""

    def __init__(self, session: "Session", filter: bytes, share: bytes) -> None:
        self.session = session
        self.filter = filter
        self.share = share
        self.qos = 0
        self.no_local = False
        self.retain_as_published = False
        self.identifiers = b""  # its subscription identifier as an encoded property, if it has one [MQTT-3.3.4-3]

    def key(self) -> bytes:
        """The filter as it was subscribed to, by which its session finds it."""
        return b"%b%b/%b" % (SHARE_PREFIX, self.share, self.filter) if self.share else self.filter


class Backlog:
    """What waits at this worker for members of shared subscriptions: see routing/shared_backlog.py."""

    def __init__(self) -> None:
        self.lists = 0  # groups for which messages wait

    def writable(self, session: "Session") -> None:
        """*session*, which is a member of a group, may have become writable. It is sent nothing during the call."""
        raise NotImplementedError
