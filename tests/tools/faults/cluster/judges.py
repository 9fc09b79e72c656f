# What is judged of a cluster beside its sessions: how soon clients of a dead node are served, and that none is served
# by two nodes.
#
# A client whose node dies connects to another one. From its first attempt there on it may be refused for PROMISED
# seconds. That is judged if nothing else is harmed in the meantime (`disturbed()`), as it hangs on Redis and on the
# node that is asked. A client that leaves before it is answered is not refused: its next attempt counts as the first.
#
# A client that has connected while it still has its old connection gets nothing there but what was sent before. What
# was first sent after its new CONNACK and comes to the old connection shows that two workers serve its session. A node
# that is suspended, or cut off from Redis, cannot know better, and lets a client have the session that it had there
# last: so nothing counts while the node of either connection is harmed, or was in the last GRACE seconds.
from dataclasses import dataclass, field
from typing import Final

from tests.tools.faults.durable.history import Connected, Connecting, Ended, Event, Late, Message, Refused, Sent

PROMISED: Final = 0.5  # seconds
GRACE: Final = 3.0  # seconds
NEVER: Final = -float("inf")


@dataclass
class Bereft:
    """A client whose node has died."""

    port: int  # of that node
    asked: float | None = None  # when it first asked a node that serves; None: it has not
    refused: bool = False  # its last attempt was


@dataclass
class RefusalJudge:
    waits: list[float] = field(default_factory=list)  # seconds from the first attempt until CONNACK
    refused: list[float] = field(default_factory=list)  # seconds from the first attempt until each refusal
    violations: list[str] = field(default_factory=list)
    _ports: dict[str, int] = field(default_factory=dict)  # that clients have connected to
    _up: set[str] = field(default_factory=set)
    _bereft: dict[str, Bereft] = field(default_factory=dict)

    def died(self, port: int) -> None:
        """The node at *port* has died, and nothing else is harmed. Call it before its clients notice."""
        self._bereft = {one: Bereft(port) for one in self._up if self._ports[one] == port}

    def disturbed(self) -> None:
        """Something else is harmed: who is not served yet may wait for that."""
        self._bereft.clear()

    def waiting(self) -> bool:
        return bool(self._bereft)

    def take(self, event: Event) -> None:
        found = self._bereft.get(event.client)
        match event:
            case Connecting():
                self._ports[event.client] = event.port
                if found is not None:
                    found.refused = False
                    if found.asked is None and event.port != found.port:
                        found.asked = event.at
            case Connected():
                self._up.add(event.client)
                if found is not None and found.asked is not None:
                    self.waits.append(event.at - found.asked)
                    del self._bereft[event.client]
            case Refused():
                if found is not None:
                    found.refused = True
                if found is not None and found.asked is not None:
                    seconds = event.at - found.asked
                    self.refused.append(seconds)
                    if seconds > PROMISED:
                        how = "has no CONNACK" if event.code is None else f"is refused with {event.code:#x}"
                        self.violations.append(
                            f"{event.at:.3f} s: {event.client} {how}, {seconds:.3f} s after it asked"
                        )
            case Ended():
                self._up.discard(event.client)
                if found is not None and not found.refused:
                    found.asked = None


@dataclass
class OwnershipJudge:
    served: int = 0  # messages to connections whose session is elsewhere, as far as such a node cannot know it
    violations: list[str] = field(default_factory=list)
    _connected: dict[str, tuple[int, float]] = field(default_factory=dict)  # place and time of the last CONNACK
    _ports: dict[str, int] = field(default_factory=dict)  # that clients have connected to
    _sent: dict[Message, int] = field(default_factory=dict)  # place of the first PUBLISH
    _harmed: dict[int, float] = field(default_factory=dict)  # until when nodes are harmed, by port
    _place: int = 0

    def harmed(self, port: int, until: float) -> None:
        """The node at *port* cannot know until then what happens elsewhere."""
        self._harmed[port] = max(until, self._harmed.get(port, NEVER))

    def take(self, event: Event) -> None:
        self._place += 1
        match event:
            case Sent():
                self._sent.setdefault((event.client, event.number), self._place)
            case Connecting():
                self._ports[event.client] = event.port
            case Connected():
                self._connected[event.client] = (self._place, event.at)
            case Late() if event.message is not None:
                place, at = self._connected[event.client]
                if self._sent.get(event.message, 0) < place:
                    return
                ports = (event.port, self._ports[event.client])
                if event.at < max(self._harmed.get(port, NEVER) for port in ports) + GRACE:
                    self.served += 1
                else:
                    what = f"{event.message}, sent later, comes to its connection at {event.port}"
                    self.violations.append(
                        f"{event.at:.3f} s: {event.client} has connected anew at {at:.3f} s, and {what}"
                    )
