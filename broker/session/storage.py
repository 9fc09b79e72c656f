# Where a durable session is stored, beside its messages: the port. store/durable/record.py stores in Redis.
from collections.abc import Callable

from broker.delivery.completion import Completion
from broker.overload.gate import Gate
from broker.session.limits import SessionLimits
from broker.session.message import Message
from broker.session.queue import Holder, MemoryQueue, MessageQueue
from broker.session.subscription import Subscription
from broker.session.will import Will


class SessionStorage:
    def __init__(self, gate: Gate) -> None:
        """*gate*: publishes of QoS 1 and 2 for the session have to pass it."""
        self.gate = gate
        self.application = False  # the client is of the kind APPLICATION: its messages wait in a log

    def open_queue(self, holder: Holder, most_bytes: int, connected: bool) -> MessageQueue:
        """The queue of the session, which is made if there is none: for its first message of QoS 1 or 2.

        See `MessageQueue` for *holder* and *most_bytes*. *connected*: a client is.
        """
        raise NotImplementedError

    def forget_queue(self) -> None:
        """The queue is not `permanent` any more: nothing of it is stored, or has to be remembered."""
        raise NotImplementedError

    def store_head(self, expiry: int, user: bytes | None, connected: bool) -> None:
        """Store that the session is that of *user*, and lasts *expiry* seconds once its client has left: now, unless it
        is *connected*.
        """
        raise NotImplementedError

    def store_index(self, value: bytes) -> None:
        """Store *value*, see store/durable/index.py, beside the client id. To be called while no client is connected.

        A will and shared subscriptions are regarded here.
        """
        raise NotImplementedError

    def leave(self) -> None:
        """All is stored, and the session is to be forgotten here, but not where it is stored."""
        raise NotImplementedError

    def store_will(self, will: Will | None) -> None:
        """Store *will*, or remove the one that is stored."""
        raise NotImplementedError

    def has_stored_will(self) -> bool:
        """Whether the will of the session is stored, for certain."""
        raise NotImplementedError

    def store_gap(self, gap: bytes) -> None:
        """Store *gap*, of messages that the client lost; b"": remove what is stored."""
        raise NotImplementedError

    def subscribed(self, subscription: Subscription) -> None:
        """Store *subscription*, which is new or has changed."""
        raise NotImplementedError

    def unsubscribed(self, key: bytes) -> None:
        """Remove the subscription under *key*."""
        raise NotImplementedError

    def shared_subscriptions(self) -> int:
        """How many of the subscriptions are shared."""
        raise NotImplementedError

    def may_receive(self, packet_id: int, duplicate: bool) -> bool:
        """Whether `receive()` may be called for such a publish; false: something has to be stored before.

        Then ask again when `when_stored()` has called back.
        """
        raise NotImplementedError

    def receive(self, packet_id: int, duplicate: bool, message: Message) -> None:
        """The client has published *message* with QoS 2, for the first time or as a *duplicate*: give it its token.

        It is held until the token is stored. To be called before it is delivered, if `may_receive()` says so.
        """
        raise NotImplementedError

    def release(self, packet_id: int) -> Completion | None:
        """PUBREL has come for *packet_id*: what is settled once that is stored, which PUBCOMP has to wait for.

        None: nothing is stored of that id. For a PUBREL that comes again before that it is the same one.
        """
        raise NotImplementedError

    def when_stored(self, then: Callable[[], None]) -> None:
        """Call *then* once all that was given to be stored so far is: at once if it is.

        Whoever waits already is forgotten: a connection waits for one answer, and the one before it has ended.
        """
        raise NotImplementedError

    def put_off(self, now: float) -> None:
        """`give()` is about to follow: what the end of the connection stores waits for it, `store.hold` at most."""
        raise NotImplementedError

    def end(self) -> None:
        """Remove everything: the session has ended."""
        raise NotImplementedError

    def confirm(self, then: Callable[[], None]) -> None:
        """Call *then* once it is certain that no other worker has taken the session; if one has, it ends before."""
        raise NotImplementedError

    def disown(self) -> list[Message]:
        """Another worker has taken the session, which is to end here.

        Returns the messages that were not stored for certain, whose publishers must not be answered.
        """
        raise NotImplementedError

    def give(self, incarnation: bytes, then: Callable[[bytes | None], None]) -> None:
        """Have the worker *incarnation* own the session, which nothing is delivered to meanwhile.

        *then* is called once all is stored and that worker owns it, with what it needs beside what is stored. Nothing
        is stored from here afterwards. If what is stored is damaged, the session has ended then. With None: that worker
        has ended, and its sessions are adopted; this one is still here, and goes on.
        """
        raise NotImplementedError


def new_queue(holder: Holder, limits: SessionLimits, storage: SessionStorage | None, connected: bool) -> MessageQueue:
    """A queue for *holder*, whose client is *connected* or not, in its *storage* or else in memory."""
    if storage is None:
        return MemoryQueue(limits.queue_bytes, limits.budget, holder)
    return storage.open_queue(holder, limits.queue_bytes, connected)
