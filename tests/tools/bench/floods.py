# More attacks of attackers.py: on memory, TLS, passwords, the index of filters, WebSocket and the admin port.
from collections.abc import Iterator
from typing import Final

from broker.mqtt.packets import V311, Connect, PingReq, Publish, Subscribe, Unsubscribe, Wanted, Will
from tests.tools.bench.attack import AGAIN, Attack, Hostile, hello, packets
from tests.tools.fuzz.channels import Channel, Tls, request
from tests.tools.fuzz.key_updates import key_updates
from tests.tools.fuzz.transports import trusting_context

KIB: Final = 1024
OWED: Final = 50  # subscribers that never acknowledge, each with a publisher
WINDOW: Final = 500  # publishes of a publisher that are not acknowledged yet
OWED_BYTES: Final = 60 * KIB  # of each
PING_EVERY: Final = 1.0  # seconds
LONG_CONNECTS: Final = 1000
LONG_FIELD: Final = 65_000  # bytes; three of them make a CONNECT of 190 KiB
PASSING: Final = 200  # connections whose short CONNECTs use up the rate
DEEP_CLIENTS: Final = 50
DEEP_FILTERS: Final = 10_000  # of each, as many as a session may have
DEEP_AT_ONCE: Final = 500
SHARE_NAME: Final = b"s" * 245
LEVELS: Final = 28  # of a deep filter, behind those that make it differ
UPDATERS: Final = 50
UPDATES: Final = 500  # at once
GUESSERS: Final = 50
SITTING: Final = 4000
WILL_BYTES: Final = 60 * KIB
TOPICS: Final = 200  # each with
RECEIVERS: Final = 100
REFRESH: Final = 2.0  # seconds until the topics are published to again, so that their routes stay
BULK: Final = 1024  # filters in one packet
BULK_CLIENTS: Final = 8
RETAINED: Final = 20_000
UPGRADES: Final = 300
SCRAPERS: Final = 200


class Owing(Hostile):
    """With an even *number*: subscribes with QoS 1 and never acknowledges. Else publishes what its window takes."""

    def __init__(self, attack: Attack, number: int) -> None:
        self._topic = b"hostile/owed/%d" % (number // 2)
        self._sent = 0
        self._heard = 0
        self._publishes = number % 2 == 1
        wanted = [] if self._publishes else [Subscribe(1, [Wanted(self._topic, 1)])]
        super().__init__(attack, number, hello(number, *wanted))

    def again(self) -> None:
        self._sent = self._heard = 0
        super().again()

    def heard(self, data: bytes) -> None:
        super().heard(data)
        self._heard += len(data)
        if self._publishes:
            self.fill()

    def fill(self) -> None:
        """Publish until WINDOW publishes are not acknowledged; CONNACK and PUBACK take 4 bytes each."""
        while self._sent - (self._heard // 4 - 1) < WINDOW and not self.connection.waits() and self.connection.open:
            self._sent += 1
            publish = Publish(self._topic, bytes(OWED_BYTES), 1, packet_id=self._sent % 65535 + 1)
            self.say(packets(publish))

    def tick(self) -> None:
        """A publisher goes on, and a subscriber pings."""
        if self._publishes:
            self.fill()
        else:
            self.say(packets(PingReq()))


class Unacknowledged(Attack):
    """Subscribers that read and ping, and never acknowledge; their publishers fill their windows."""

    def start(self) -> None:
        self.gather(2 * OWED, lambda n: Owing(self, n))
        self.loop.later(PING_EVERY, self._tick)

    def _tick(self) -> None:
        for one in self.members:
            assert isinstance(one, Owing)
            one.tick()
        self.loop.later(PING_EVERY, self._tick)


def long_connect(number: int) -> bytes:
    will = Will(b"hostile/will", bytes(LONG_FIELD - 500))
    return packets(Connect(V311, f"long-{number}", True, 600, "u" * LONG_FIELD, bytes(LONG_FIELD), will))


class LongConnects(Attack):
    """CONNECTs of 190 KiB, half of them without their last byte, while short CONNECTs use up the rate."""

    def start(self) -> None:
        self.gather(LONG_CONNECTS + PASSING, self._one, patient=False)

    def _one(self, number: int) -> Hostile:
        if number < PASSING:
            return Hostile(self, number, hello(number))
        whole = long_connect(number)
        return Hostile(self, number, whole if number % 2 else whole[:-1])

    def heard(self, who: Hostile, data: bytes) -> None:
        who.connection.reset()
        self.loop.later(AGAIN, who.again)


class Rounds(Attack):
    """Each of *clients* says one of its rounds after the other, each when it has heard an answer."""

    clients = 1
    endless = True

    def start(self) -> None:
        self._at: dict[int, int] = {}
        self.prepare()
        self.gather(self.clients, lambda n: Hostile(self, n, hello(n)))

    def prepare(self) -> None:
        """Before the clients come."""

    def rounds(self, number: int) -> list[bytes]:
        """What the client *number* says; the same list each time."""
        raise NotImplementedError

    def heard(self, who: Hostile, data: bytes) -> None:
        rounds = self.rounds(who.number)
        at = self._at.get(who.number, 0)
        if self.endless or at < len(rounds):
            who.say(rounds[at % len(rounds)])
            self._at[who.number] = at + 1


class Filters(Rounds):
    """Ten thousand deep filters of each client; every second has long share names instead."""

    clients = DEEP_CLIENTS
    endless = False

    def rounds(self, number: int) -> list[bytes]:
        at = self._at.get(number, 0)
        said = [b""] * (DEEP_FILTERS // DEEP_AT_ONCE)
        if at < len(said):
            said[at] = packets(Subscribe(1, list(deep(number, at * DEEP_AT_ONCE))))
        return said


def deep(client: int, first: int) -> Iterator[Wanted]:
    """DEEP_AT_ONCE filters that share no level."""
    for n in range(first, first + DEEP_AT_ONCE):
        below = b"/".join([b"a"] * LEVELS)
        own = b"%d-%d" % (client, n)
        yield Wanted(b"$share/%s%s/%s" % (SHARE_NAME, own[-11:], own) if client % 2 else own + b"/" + below, 1)


class BulkSubscribes(Rounds):
    """SUBSCRIBE of the same filters again and again, and UNSUBSCRIBE of all."""

    clients = BULK_CLIENTS

    def prepare(self) -> None:
        self._rounds = []
        for client in range(self.clients):
            names = [b"hostile/%d/%d/+" % (client, n) for n in range(BULK)]
            subscribe = packets(Subscribe(1, [Wanted(name, 1) for name in names]))
            self._rounds.append([subscribe, subscribe, packets(Unsubscribe(1, names))])

    def rounds(self, number: int) -> list[bytes]:
        return self._rounds[number]


class RetainedReplays(Rounds):
    """SUBSCRIBEs that search all retained messages and match none."""

    clients = BULK_CLIENTS

    def prepare(self) -> None:
        keeper = Hostile(self, 1000, hello(1000))
        keeper.begin()
        for first in range(0, RETAINED, 500):
            many = [Publish(b"hostile/kept/%d/x" % n, b"x", 0, True) for n in range(first, first + 500)]
            keeper.say(packets(*many))
        self._rounds = [packets(Subscribe(1, [Wanted(b"+/+/+/none-%d" % n) for n in range(100)]))]

    def rounds(self, number: int) -> list[bytes]:
        return self._rounds


class LeadingWildcards(Rounds):
    """SUBSCRIBE and UNSUBSCRIBE of +/x in a loop, beside routes with many receivers."""

    def prepare(self) -> None:
        for n in range(RECEIVERS):
            one = Hostile(self, 1000 + n, hello(1000 + n, Subscribe(1, [Wanted(b"hostile/+")])))
            one.begin()
            self.members.append(one)
        self._publisher = Hostile(self, 999, hello(999))
        self._publisher.begin()
        self._refresh()

    def rounds(self, number: int) -> list[bytes]:
        return [packets(Subscribe(1, [Wanted(b"+/x")])), packets(Unsubscribe(1, [b"+/x"]))]

    def heard(self, who: Hostile, data: bytes) -> None:
        if who.number == 0:
            super().heard(who, data)

    def _refresh(self) -> None:
        self._publisher.say(packets(*[Publish(b"hostile/%d" % n, b"") for n in range(TOPICS)]))
        self.loop.later(REFRESH, self._refresh)


class Updating(Tls):
    """Each say() is a run of key updates."""

    def __init__(self) -> None:
        super().__init__(trusting_context())
        self._updates = b""

    def say(self, data: bytes) -> None:
        if self._established:
            self._updates += key_updates(self._ssl, self._outgoing, UPDATES)

    def outgoing(self) -> bytes:
        updates, self._updates = self._updates, b""
        return super().outgoing() + updates


class KeyUpdates(Attack):
    """Key updates of TLS 1.3 instead of a CONNECT."""

    over = "tls"
    beside = "tls"

    def start(self) -> None:
        self.gather(UPDATERS, lambda n: Hostile(self, n, b"", keep_talking), patient=False)

    def channel(self) -> Channel:
        return Updating()


def keep_talking(who: Hostile) -> None:
    """Say something whenever the former is with the kernel, as long as this connection is open."""
    connection = who.connection

    def go_on() -> None:
        if connection.open:
            if not connection.waits():
                who.say(b" ")
            who.attack.loop.later(AGAIN, go_on)

    go_on()


class Dropping(Attack):
    """Connections that are dropped as soon as the broker answers, and opened again."""

    def heard(self, who: Hostile, data: bytes) -> None:
        who.connection.reset()
        self.loop.later(0.0, who.again)


class Handshakes(Dropping):
    """TLS handshakes that are begun, and dropped when the server has done its part."""

    over = "tls"
    beside = "tls"

    def start(self) -> None:
        context = trusting_context()
        self.gather(UPGRADES, lambda n: Hostile(self, n, Tls(context).outgoing()), patient=False)

    def channel(self) -> Channel:
        return Channel()


class Passwords(Attack):
    """Wrong passwords from one address: of the honest user, and of users that do not exist."""

    over = "tcp"
    beside = "password"
    source = "127.0.0.2"

    def start(self) -> None:
        def one(number: int) -> Hostile:
            user = "honest" if number % 2 else f"nobody-{number}"
            connect = Connect(V311, f"guess-{number}", True, 600, user, b"wrong")
            return Hostile(self, number, packets(connect))

        self.gather(GUESSERS, one)


class Guesses(Passwords):
    """The same from 200 addresses."""

    source = ""


class Wills(Attack):
    """Clients with a will of 60 KiB that sit; every second has a session that stays."""

    beside = "persistent"

    def start(self) -> None:
        def one(number: int) -> Hostile:
            will = Will(b"hostile/will", bytes(WILL_BYTES), 1)
            return Hostile(self, number, packets(Connect(V311, f"will-{number}", number % 2 == 0, 600, will=will)))

        self.gather(SITTING, one)


class Upgrades(Dropping):
    """WebSocket requests that are dropped when they are answered, requests in parts, and plain HTTP."""

    over = "ws"
    beside = "ws"

    def start(self) -> None:
        plain = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        said = [request(), request()[:60], plain]
        self.gather(UPGRADES, lambda n: Hostile(self, n, said[n % len(said)]), patient=False)

    def channel(self) -> Channel:
        return Channel()


class Scrapers(Attack):
    """Scrapers that hold the admin port with half a request, or do not read what they asked for."""

    over = "admin"
    beside = "health"

    def start(self) -> None:
        whole = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self.gather(
            SCRAPERS, lambda n: Hostile(self, n, whole if n % 2 else whole[:20], deaf=n % 2 == 1), patient=False
        )

    def channel(self) -> Channel:
        return Channel()


FLOODS: Final[dict[str, type[Attack]]] = {
    "unacknowledged": Unacknowledged,
    "long-connects": LongConnects,
    "filters": Filters,
    "key-updates": KeyUpdates,
    "handshakes": Handshakes,
    "passwords": Passwords,
    "guesses": Guesses,
    "wills": Wills,
    "leading-wildcards": LeadingWildcards,
    "bulk-subscribes": BulkSubscribes,
    "retained-replays": RetainedReplays,
    "upgrades": Upgrades,
    "scrapers": Scrapers,
}
