# A few connected clients and the routes to them: who gets what of a message?
from broker.delivery.outbox import Outbox
from broker.metrics.counters import Counters
from broker.mqtt.packets import V5
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.routing.authority import Authoriser
from broker.routing.fanout import Deliveries
from broker.routing.route import Route
from broker.routing.routes import Routes
from broker.routing.shared_backlog import SharedBacklog
from broker.session.message import Message
from broker.session.origin import NOWHERE, Origin
from broker.session.principal import Principal
from broker.session.queue import MessageBudget
from broker.session.run import Run
from broker.session.session import Session
from broker.session.subscription import Subscription
from tests.session.receiver import NOW, Receiver, message

PLENTY = 1 << 40


class NoPause:
    """Stands for the connections of publishers, which this party does not have."""

    def pause(self, source: Outbox) -> None:
        pass

    def resume(self, source: Outbox) -> None:
        pass


class Party:
    def __init__(
        self,
        *,
        topics: int = PLENTY,
        size: int = PLENTY,
        levels: int = 128,
        topic_bytes: int = 4096,
        authoriser: Authoriser | None = None,
        queue: int = 1000,
        queue_bytes: int = PLENTY,
        budget: int = PLENTY,
    ) -> None:
        """*queue*, *queue_bytes*, *budget*: limits of what waits for shared subscriptions."""
        self.counters = Counters()
        self.budget = MessageBudget(budget)
        self.full: list[tuple[bytes, bytes]] = []  # groups that were reported to have dropped messages
        self.backlog = SharedBacklog(queue, queue_bytes, self.budget, self.counters, lambda: None, self._is_full)
        self.deliveries = Deliveries(NoPause(), self.counters, lambda: NOW, Origin(NOWHERE), self.backlog)
        self.routes = Routes(topics, size, levels, topic_bytes, self.backlog, authoriser)
        self.clients: dict[str, Receiver] = {}

    def _is_full(self, share: bytes, filter: bytes) -> None:
        self.full.append((share, filter))

    def settle(self) -> None:
        """Deliver what waits for shared subscriptions, as far as members are writable."""
        while self.deliveries.work(NOW):
            pass

    def client(self, name: str, *, expiry: int = 0, pending: int = 1000) -> Receiver:
        """The client of that name, connected with 5.0 when it is first named."""
        if name not in self.clients:
            self.clients[name] = Receiver(name, expiry=expiry, pending=pending, budget=self.budget).connect(V5)
            self.clients[name].session.principal = Principal(name, name, 0)
        return self.clients[name]

    def subscribe(
        self,
        name: str,
        filter: bytes,
        qos: int = 2,
        *,
        share: bytes = b"",
        no_local: bool = False,
        as_published: bool = False,
        identifier: int = 0,
    ) -> Subscription:
        """As SUBSCRIBE does it: the session knows the subscription first, then the routes do."""
        session = self.client(name).session
        key = b"$share/%b/%b" % (share, filter) if share else filter
        new = key not in session.subscriptions
        if new:
            session.subscriptions[key] = Subscription(session, filter, share)
        subscription = session.subscriptions[key]
        subscription.qos = qos
        subscription.no_local = no_local
        subscription.retain_as_published = as_published
        subscription.identifiers = bytes((SUBSCRIPTION_IDENTIFIER, identifier)) if identifier else b""
        if new:
            self.routes.add(subscription)
        else:
            self.routes.changed(subscription)
        return subscription

    def unsubscribe(self, name: str, key: bytes) -> None:
        """*key*: the filter as the client wrote it."""
        self.routes.remove(self.client(name).session.subscriptions.pop(key))

    def publish(self, topic: bytes, qos: int = 0, *, by: str = "", retain: bool = False) -> dict[str, int]:
        """Deliver a message; how many copies each client got, those with none left out."""
        route = self.routes.find(topic)
        publisher = self.client(by).session if by else None
        sent = Message(topic, b"payload", qos, retain, b"", 0.0)
        for shared in route.shared:
            shared.deliver(sent, NOW)
        for group in route.groups:
            group.deliver(sent, 0, len(group.sessions), publisher, NOW)
        return self._copies()

    def publish_run(self, topic: bytes, *, by: str) -> dict[str, int]:
        """The same with a run of two messages, for receivers that are not shared."""
        data = message(b"payload", topic=topic).whole(V5, NOW)
        run = Run(data * 2, V5, 2, topic, 14, len(data))
        for group in self.routes.find(topic).groups:
            group.deliver_run(run, 0, len(group.sessions), self.client(by).session, NOW)
        return self._copies()

    def _copies(self) -> dict[str, int]:
        counts = {name: len(client.payloads()) for name, client in self.clients.items()}
        return {name: count for name, count in counts.items() if count}


def receivers(route: Route) -> list[list[Session]]:
    """The sessions of each group."""
    return [[session for session in group.sessions if session is not None] for group in route.groups]
