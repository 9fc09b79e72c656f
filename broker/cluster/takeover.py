# The other workers of the node, and those of other nodes, as far as the sessions of this one are concerned.
#
# A CONNECT claims its session in Redis, or, while that is away, within the node. Whoever had it until then is named,
# and has to give it up. How that is asked for and answered is the mesh's part: it is `TakeoverRequests`, and is called
# by `SessionClaims` (session_claims.py), whose `give_up()` it calls on the other side.
#
# The way of one takeover, A having the session and B the new connection:
#   B  SessionClaims  claims, gets the epoch e, and Redis names A: calls TakeoverRequests.take_over(..., A, e, ...)
#   B  mesh                asks A
#   A  mesh                calls SessionClaims.give_up(client, e, then)
#   A  SessionClaims  calls then(TakeoverResult): with the session; or nothing is here; or it is ours with an epoch
#                          later than e (superseded). If a claim of ours for it is under way, that one ends first
#   A  mesh                closes its connection (0x8E), freezes it, waits for its peers, takes it out of its routes,
#                          calls SessionClaims.forget(session), and hands it over
#   B  mesh                puts it into B's routes, and calls the `then` of take_over() with it
#   B  SessionClaims  lets the client in: only then CONNACK
#
# Why nobody waits in a circle: who gives up waits only for claims of his own that have lower epochs than the one he is
# asked by; one with a higher epoch answers "superseded" at once, and the client who asked is turned away (0x88).
from collections.abc import Callable
from typing import Final, Protocol

from broker.cluster.owner import Owner
from broker.session.session import Session

HANDOVER_PATIENCE: Final = 2.0  # seconds; the client that waits gives up, or connects once more, not long after


class TakeoverResult:
    """What became of a session that another worker was asked for."""

    def __init__(
        self, session: Session | None, epoch: int = 0, superseded: bool = False, nowhere: bool = False
    ) -> None:
        """*epoch*: what its former owner held it with, 0 if nobody did; *superseded*: and that is the later one;
        *nowhere*: nobody who was asked holds it, or there was nobody to ask.

        The last one means that Redis named somebody whose claim it carried out when he had given it up, or was dead:
        who had the session before him may have it still.
        """
        self.session = session
        self.epoch = epoch
        self.superseded = superseded
        self.nowhere = nowhere


OnTakeover = Callable[[TakeoverResult], None]


class TakeoverRequests(Protocol):
    """Each `then` is called exactly once, perhaps before the method returns, and always within
    HANDOVER_PATIENCE: the death of a peer, or its silence, answers with `TakeoverResult(None)`.
    """

    def take_over(self, client_id: str, former: Owner, epoch: int, wanted: bool, then: OnTakeover) -> None:
        """We own *client_id* with *epoch* from now on, says Redis, and *former* did until now: have it give that up.

        Not *wanted*: a clean start, what *former* has is to be ended there (its will is published [MQTT-3.1.2-8]), and
        `then` gets none, once its connection is closed. A *former* that nobody knows, of this node, is dead: *nowhere*.
        A session that is given to `then` is without a connection, in the routes of this worker and in its store.
        """
        ...

    def claim_within_node(self, client_id: str, epoch: int, wanted: bool, then: OnTakeover) -> None:
        """Redis is away: the same, of whoever has *client_id* in this node. Claims of one id are taken in turn.

        *epoch* is by our clock; who owns it by Redis' clock may have a greater one: if it answers superseded, we try
        once more with one that is greater.
        """
        ...

    def whether(self, client_id: str, owner: Owner, then: Callable[[bool], None]) -> None:
        """Whether *owner*, of this node, has the session of *client_id*, once its claims of it are over; if it is dead
        it has not. *then* is called once, perhaps before this returns.
        """
        ...
