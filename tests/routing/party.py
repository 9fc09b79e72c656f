# A few connected clients and the routes to them: who gets what of a message?
from broker.mqtt.packets import V5
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.routing.authority import Authoriser
from broker.routing.route import Route
from broker.routing.routes import Routes
from broker.session.message import Message
from broker.session.principal import Principal
from broker.session.run import Run
from broker.session.session import Session, Subscription
from tests.session.receiver import NOW, Receiver, message

PLENTY = 1 << 40


class Party:
    def __init__(
        self,
        *,
        topics: int = PLENTY,
        size: int = PLENTY,
        levels: int = 128,
        topic_bytes: int = 4096,
        authoriser: Authoriser | None = None,
    ) -> None:
        self.routes = Routes(topics, size, levels, topic_bytes, authoriser)
        self.clients: dict[str, Receiver] = {}

    def client(self, name: str, *, expiry: int = 0, pending: int = 1000) -> Receiver:
        """The client of that name, connected with 5.0 when it is first named."""
        if name not in self.clients:
            self.clients[name] = Receiver(name, expiry=expiry, pending=pending).connect(V5)
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
