# The frames of the link between the supervisor and a worker: each is declared here, once, for both ends. Those of the
# link to the carrier are in carrier_frames.py.
#
# The supervisor sends an Assignment first. A worker sends LoopStarted, then Ready when it accepts connections, a
# StatisticsReport each second, and Ended as its last frame; a worker that cannot start sends CannotStart instead.
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from broker.control.frame_codec import Frame, FrameDecoder
from broker.store.redis.address import RedisAddress
from broker.worker_id import WorkerId

Report = dict[str, Any]  # as broker/metrics/report.py makes it
Ban = dict[str, Any]  # as broker/auth/bans.py describes it
Override = dict[str, Any]  # of the configuration, as broker/config/overrides.py describes it
Limit = dict[str, Any]  # an override of one client, as broker/overload/quotas/overrides.py describes it


@dataclass(frozen=True)
class ListenerSocket:
    """A listening socket that the worker inherits."""

    transport: str  # "tcp", "tls", "ws" or "wss"
    descriptor: int


@dataclass(frozen=True)
class PeerSockets:
    """The socket pairs' ends that the worker inherits, to one other worker of the node."""

    worker: WorkerId
    data: int  # descriptor of the data lane
    control: int  # descriptor of the control lane


@dataclass(frozen=True)
class DeadNode:
    """A node whose lease has run out, or that has ended and left durable sessions."""

    name: str
    workers: list[WorkerId]  # as it has told last
    owners: int  # workers of it whose durable sessions nobody has adopted


@dataclass(frozen=True)
class NodePlace:
    """What a node that runs says of how clients get there."""

    name: str
    reference: str  # for a Server Reference; "": it does not say
    draining: bool  # it takes no clients


@dataclass(frozen=True)
class NodeClock:
    """How the monotonic clock of another node differs: that of another machine began at another time."""

    name: str
    shift: int  # milliseconds to add to a time of its clock for that of the clock here


# From the supervisor.


@dataclass(frozen=True)
class OtherNodes(Frame):
    """The other nodes that share the Redis of this one: all of them, at each change."""

    workers: list[WorkerId]  # of those that run, and that lanes can be opened to
    former: list[str]  # those of them whose lanes have the format before that of this node: cluster/lane_format.py
    missing: int  # shards of these nodes that have no worker now
    dead: list[DeadNode]
    places: list[NodePlace] = field(default_factory=list)  # of those that run and say more than that they do
    clocks: list[NodeClock] = field(default_factory=list)  # of those whose clocks are not that of this node


@dataclass(frozen=True)
class DrainNode(Frame):
    """Have clients use other nodes, and refuse new ones; or, not *on*, end that."""

    on: bool
    forced: bool  # also if there is no other node


@dataclass(frozen=True)
class Assignment(Frame):
    """All that a new worker needs; the first frame."""

    worker: WorkerId
    workers: int  # in the node
    memory: int  # bytes that all processes of the node may use
    folder: str  # of the node
    config: dict[str, Any]  # by key, for `restored()` of broker/config/sources.py
    descriptor_limit: int  # open descriptors that the process may have
    heartbeat: int  # descriptor of the shared memory
    log: int  # descriptor that log lines are written to
    log_path: str  # the file behind it; "": none
    listeners: list[ListenerSocket]
    peers: list[PeerSockets]
    redis: RedisAddress
    alone: bool  # no other worker can use this Redis
    cluster_key: str  # hexadecimal: seals what is left in Redis; "": there is none
    overrides: list[Override]
    limits: list[Limit]
    bans: list[Ban]
    nodes: OtherNodes
    drain: DrainNode


@dataclass(frozen=True)
class NewPeer(Frame):
    """Another worker has started. The descriptors of the data lane and of the control lane come with this frame."""

    worker: WorkerId


@dataclass(frozen=True)
class NewCarrier(Frame):
    """A carrier has started. The descriptors of the data lane and of the control lane come with this frame."""


@dataclass(frozen=True)
class Drain(Frame):
    """Disconnect the clients and end."""

    hand_over: bool  # give the sessions to the other workers first


@dataclass(frozen=True)
class Reload(Frame):
    """Read the password file, the ACL file and the certificates again, and use *overrides*.

    The worker answers with Reloaded.
    """

    overrides: list[Override]


@dataclass(frozen=True)
class ReopenLog(Frame):
    """Open the log file again: it was renamed."""


@dataclass(frozen=True)
class OtherWorkers(Frame):
    """The sum of the reports of all other workers, and of those that have ended, for $SYS."""

    report: Report


@dataclass(frozen=True)
class PublishWills(Frame):
    """Publish the wills that the clients of an ended worker left in Redis."""

    incarnation: int  # of the ended worker
    done: list[tuple[str, int]]  # client id and epoch of the wills that the ended worker settled itself (WillSettled)


@dataclass(frozen=True)
class RedisMoved(Frame):
    address: RedisAddress


@dataclass(frozen=True)
class ChangeLimits(Frame):
    """Overrides of single clients."""

    limits: list[Limit]  # in force from now on
    ended: list[str]  # client ids whose overrides end


@dataclass(frozen=True)
class ChangeBans(Frame):
    """Bans of clients."""

    bans: list[Ban]  # in force from now on
    ended: list[list[str]]  # kind and value of bans that end


@dataclass(frozen=True)
class Request(Frame):
    """A question of broker/insight/admin_requests.py. The worker sends an Answer with the same number."""

    number: int
    what: str
    arguments: dict[str, Any]


# From a worker.


@dataclass(frozen=True)
class LoopStarted(Frame):
    """The reactor runs: the other workers, and the carrier, may connect the lanes."""


@dataclass(frozen=True)
class Ready(Frame):
    """The worker accepts connections."""

    connections: int  # the most that it accepts


@dataclass(frozen=True)
class StatisticsReport(Frame):
    report: Report


@dataclass(frozen=True)
class Answer(Frame):
    number: int
    result: Any
    error: str  # one sentence; "": the request succeeded


@dataclass(frozen=True)
class Reloaded(Frame):
    error: str  # one sentence; "": the files are in force


@dataclass(frozen=True)
class WillSettled(Frame):
    """A will was published or cancelled while Redis was away, so Redis still holds it."""

    client_id: str
    epoch: int  # of the claim that the will belongs to


@dataclass(frozen=True)
class Ended(Frame):
    """The worker has drained; the last frame."""

    sessions_lost: int  # sessions that ended with the worker, as they were only in its memory


@dataclass(frozen=True)
class CannotStart(Frame):
    sentence: str  # for the user


FromSupervisor = (
    Assignment
    | NewPeer
    | NewCarrier
    | Drain
    | DrainNode
    | Reload
    | ReopenLog
    | OtherWorkers
    | OtherNodes
    | PublishWills
    | RedisMoved
    | ChangeLimits
    | ChangeBans
    | Request
)
FromWorker = LoopStarted | Ready | StatisticsReport | Answer | Reloaded | WillSettled | Ended | CannotStart

SUPERVISOR_FRAMES: Final[FrameDecoder[FromSupervisor]] = FrameDecoder(get_args(FromSupervisor))
WORKER_FRAMES: Final[FrameDecoder[FromWorker]] = FrameDecoder(get_args(FromWorker))
