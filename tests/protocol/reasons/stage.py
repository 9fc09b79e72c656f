# Where the reasons happen: what a scenario has at hand, and what it hands back.
#
# A scenario makes one reason happen, with brokers in this process. The member of the enum that it is for leads to it.
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

from broker.auth.passwords import hash_password
from broker.config.schema import Access, Config
from broker.mqtt.packets import Ack, ConnAck, Disconnect, SubAck
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

Member = Enum
RULES: Final = "user alice\ntopic readwrite rooms/#\ntopic deny rooms/vault/#\n"
FAILURE: Final = 0x80  # codes from here say no
LATE: Final = 1.0  # seconds: twenty times the target of lag


class Stage:
    """Makes brokers and nodes, which are closed after the scenario."""

    def __init__(
        self,
        brokers: Callable[..., Broker],
        nodes: Callable[..., Node],
        start_redis: Callable[..., RunningRedis],
        folder: Path,
    ) -> None:
        self.brokers = brokers
        self.nodes = nodes
        self._start_redis = start_redis
        self.folder = folder

    def house(self, client_id_rule: str = "") -> Broker:
        """A broker with the users alice and bob, whose passwords are their names, and RULES."""
        passwords, acl = self.folder / "passwords", self.folder / "acl"
        hashed = [f"{name}:{hash_password(name.encode(), b'twelve bytes', 1)}\n" for name in ("alice", "bob")]
        passwords.write_text("".join(hashed))
        acl.write_text(RULES)
        access = Access(password_file=str(passwords), acl_file=str(acl), client_id_rule=client_id_rule)
        return self.brokers(Config(access=access))

    def with_redis(self, config: Config) -> Broker:
        """The one worker of a node that has a Redis."""
        self._server = self._start_redis()
        (broker,) = self.nodes(1, config, self._server)
        return broker

    def stop_redis(self, broker: Broker) -> None:
        """The Redis of *broker* does not answer any more, which waits for it no longer than it would."""
        self._server.pause()
        broker.answered = False

    def change_rules(self, broker: Broker, rules: str) -> None:
        (self.folder / "acl").write_text(rules)
        broker.reload()


class Seen:
    """What came of a scenario."""

    def __init__(self, workers: list[Broker], client_id: str, heard: list[int]) -> None:
        """*client_id*: who would be asked for; "": it never said. *heard*: the codes that told it no."""
        self.workers = workers
        self.client_id = client_id
        self.heard = heard


Scenario = Callable[[Stage], Seen]
SCENARIOS: Final[dict[Member, Scenario]] = {}


def happens(*members: Member) -> Callable[[Scenario], Scenario]:
    """The function that follows is the scenario of *members*."""

    def register(scenario: Scenario) -> Scenario:
        for member in members:
            assert member not in SCENARIOS, member
            SCENARIOS[member] = scenario
        return scenario

    return register


def heard(client: Client) -> list[int]:
    """The codes of all that told *client* no."""
    codes: list[int] = []
    for packet in client.receive():
        if isinstance(packet, SubAck):
            codes += packet.codes
        elif isinstance(packet, Ack | Disconnect | ConnAck):
            codes.append(packet.code)
    return [code for code in codes if code >= FAILURE]


def overload(broker: Broker) -> None:
    """The worker is late, has been for a while, and will be."""
    broker.overload_monitor.inject("lag", LATE, broker.clock.now + 60.0)
    broker.advance(1.5)
