# Takeover: a session goes from the worker that has it (the giving side) to the worker that its client has come to (the
# asking side).
#
# A CONNECT claims its session in Redis, or within the node while Redis is away (session_claims.py). Nodes differ only
# in how long an answer is waited for: 300 ms for that of a worker of another node. Redis names the former owner, which
# has to give the session up. The asking side, N, asks the giving side, O, over the control lane:
#
#   N  SessionClaims     claims; Redis answers with the epoch e and the former owner O
#   N  IncomingSessions  ASK to O
#   O  OutgoingSessions  asks its own SessionClaims: the session is here; or nothing is; or this worker owns it with an
#                        epoch later than e (superseded); or it belongs to another user, and stays here. If a claim for
#                        it is under way at O, that one ends first
#   O                    closes the connection (0x8E), waits until every peer has processed what it accepted from that
#                        client (or the client's next message could overtake its last), and sends ANSWER and then what
#                        the session holds, in chunks, over the data lane (session/transfer/)
#   N                    subscribes the session; from then on messages could arrive at both places, so:
#   N  to all   SWITCH   it comes behind what N has told of its interest, so each worker X knows that already
#   X  to N, O  MARK     on the data lane: what X sent before it is for the session at O, and what X sends after it for
#                        the session at N; both keep a TransferFilter (session/origin.py) meanwhile. N and O are an X
#   O  all marks         nothing arrives any more: the session leaves the routes there; its last chunks are sent
#   N  all marks, all chunks: TAKEN to O, which forgets the session; SessionClaims answers the CONNECT
#
# Of a durable session no messages are sent. When nothing arrives for it any more O stores the rest of it, and in the
# same transaction it becomes one of N; then its routes are removed, the last chunk says so, and N reads it. That step
# is taken even if N has died: who follows N adopts it from there, or, if that is adopting already, Redis refuses the
# step, and O keeps the session, whose routes it has still. So there is no time at which no worker is known to have it.
# What O refuses meanwhile, as it is for N, is answered when the step is taken: if O keeps the session, it comes again.
# N does not give up such a session once O has begun to send it. If O dies, N takes it from O in Redis, as it does if O
# has died before or does not answer (forced_takeovers.py); if the next worker with O's shard has adopted it by then, N
# asks that one. O learns that with its next transaction, and ends what it has without answering any publisher for it.
#
# So each message arrives once, in the order of its publisher. A peer that dies counts as one that has marked: all that
# it sent has been taken. A peer that joins is asked to mark. If N dies, O keeps the session. If N gives up waiting
# (ABANDON), the session ends at O. If O dies before the last chunk, there is no session.
#
# Claims cannot wait for each other in a circle: the giving side waits only for claims of its own that have lower epochs
# than the one it is asked for, and answers "superseded" at once to any other; that client is refused (0x88).
#
# With its answer O sends the credits that the client has left, also if there is no session. While Redis is away no
# worker knows which one has a session: all peers are asked, and the claim with the greater epoch wins.
from collections.abc import Callable
from typing import Final, Protocol

from broker.cluster.owner import Owner
from broker.session.session import Session

TAKEOVER_TIMEOUT: Final = 2.0  # seconds; the waiting client gives up, or connects once more, not long after


class TakeoverResult:
    """What became of a session that other workers were asked for."""

    def __init__(
        self,
        session: Session | None,
        epoch: int = 0,
        superseded: bool = False,
        nowhere: bool = False,
        of_other_user: bool = False,
        unanswered: bool = False,
    ) -> None:
        """*epoch*: of the former owner's claim, 0 if there was none. *superseded*: that claim is the later one.

        *of_other_user*: the session stays where it is, as it belongs to another user; *epoch* is then its new epoch.

        *nowhere*: no worker that was asked has the session, or there was none to ask. Then Redis named an owner whose
        claim it carried out after the claim was abandoned, or a dead one: the owner before that may still have it.

        *unanswered*: a worker that may have it has died, or does not answer in time; or a durable one was gone from the
        store when it was to be given, or came in chunks that cannot be read. If the session is durable, it can be taken
        in the store from who has it there.
        """
        self.session = session
        self.epoch = epoch
        self.superseded = superseded
        self.nowhere = nowhere
        self.of_other_user = of_other_user
        self.unanswered = unanswered


OnTakeover = Callable[[TakeoverResult], None]


class TakeoverRequests(Protocol):
    """The asking side. Each `then` is called exactly once, perhaps before the method returns, and within
    TAKEOVER_TIMEOUT: a peer that dies or does not answer results in `TakeoverResult(None)`.
    """

    def take_over(self, client_id: str, former: Owner, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        """Have *former* give up the session of *client_id*, which this worker owns with *epoch* now, says Redis.

        *former* refuses if the session belongs to another user than the one with the tag *user*.

        Not *wanted* (a clean start): the session ends where it is, its will is published there [MQTT-3.1.2-8], and
        `then` is called without a session once its connection is closed. If *former* is no peer the
        result is *nowhere*. The session that `then` gets has no connection; it is in the routes and in the store of
        this worker, and a session of that client id that was in the store before has ended.
        """
        ...

    def claim_within_node(self, client_id: str, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        """As `take_over()`, but of whichever worker of the node has *client_id*: Redis is away.

        Workers of other nodes cannot be asked without Redis. *epoch* comes from this worker's clock; an epoch from the
        clock of Redis may be greater. If the answer is "superseded", the caller tries once more with a greater one.
        """
        ...

    def claim_everywhere(self, client_id: str, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        """As `take_over()`, but of whichever worker of the cluster has *client_id*: Redis does not know which one."""
        ...

    def reaches(self, owner: Owner) -> bool:
        """Whether *owner* can be asked now."""
        ...

    def whether(self, client_id: str, owner: Owner, then: Callable[[bool], None]) -> None:
        """Call *then* with whether *owner* has the session of *client_id*.

        *owner* answers once its own claims for that client id are over. A dead worker has no session; a worker of
        another node that may live and cannot be asked has it.
        """
        ...
