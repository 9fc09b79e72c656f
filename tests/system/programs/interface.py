# Other people's MQTT clients behind one interface, so that one set of tests speaks through all of them.
#
# A Program publishes, and listens: a Listener exists from the SUBACK on, so what is published after listen() has
# returned must arrive. Nothing here waits longer than PATIENCE, and nothing waits for a fixed time.
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tests.system.addresses import Address
from tests.system.processes import PATIENCE

SESSION_SECONDS: Final = 300  # how long a kept session lives on 5.0, where the client says it


class Said(NamedTuple):
    """What a 5.0 message says about itself. Versions before 5.0 say nothing."""

    content_type: str = ""
    response_topic: str = ""
    correlation: bytes = b""
    user: tuple[tuple[str, str], ...] = ()
    expiry: int = 0  # seconds; 0 = nothing was said
    alias: int = 0  # of its topic; published: the first message introduces it, those after it say only the alias
    subscriptions: tuple[int, ...] = ()  # identifiers of those that it came for: only on what arrives


SILENT: Final = Said()


class Received(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    said: Said = SILENT


class LastWords(NamedTuple):
    """A will: QoS 1, not retained."""

    topic: str
    payload: bytes


class Wish(NamedTuple):
    """What a listener asks for beside its filter."""

    qos: int = 0
    session: str = ""  # a client id whose session is kept; without it nothing outlives the listener
    will: LastWords | None = None
    identifier: int = 0  # of the subscription, on 5.0; 0 = none
    aliases: int = 0  # how many topic aliases the broker may set, on 5.0


class NothingCame(AssertionError):
    """No message within the time that was given."""


class Listener(Protocol):
    ended: bool  # leave() or die() was called

    def take(self, patience: float = PATIENCE) -> Received:
        """The next message. Raises NothingCame after *patience* seconds."""

    def farewell(self) -> int:
        """The reason code of the DISCONNECT that the broker ended this connection with."""

    def leave(self) -> None:
        """End with a DISCONNECT."""

    def die(self) -> None:
        """End without one."""


class Program(Protocol):
    def listen(self, address: Address, topic_filter: str, wish: Wish) -> Listener:
        """Subscribe."""

    def publish(
        self,
        address: Address,
        topic: str,
        payloads: Sequence[bytes],
        qos: int = 0,
        *,
        retain: bool = False,
        said: Said = SILENT,
    ) -> None:
        """Publish on one connection, in order; returns when the last is acknowledged (QoS 0: written)."""
