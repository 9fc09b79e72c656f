# The facts about one client, for `weir why`: a worker makes them, the supervisor combines those of all workers, and
# `weir why --json` prints them.
#
# A clock is valid in one process only, so times are relative: seconds ago, or seconds from now. Credits are whole.
from typing import TypedDict


class ConnectionFacts(TypedDict):
    """The client's connection."""

    address: str
    transport: str
    version: int  # as in CONNECT: 3, 4 or 5
    user: str  # "": no user was verified
    age: float  # since it was accepted
    silent: float  # since its last packet
    keep_alive: float  # seconds of silence after which it is closed; 0.0: never


class TurnFacts(TypedDict):
    """The client has sent more than is served in a turn."""

    behind: float  # since all that it had sent was served
    ready: int  # clients of its worker that wait for their turn


class EndFacts(TypedDict):
    """How a connection ended, or was refused before it began."""

    reason: str  # label of a CloseReason
    code: int  # of MQTT 5; 0: there is none
    ago: float
    detail: str
    address: str
    undelivered: int  # messages that were queued when the session ended


class SessionFacts(TypedDict):
    subscriptions: int
    expiry: int  # seconds that the session outlives its connection


class ConnectingFacts(TypedDict):
    """The client's CONNECT waits for its turn."""

    waited: float
    waiting: int  # CONNECTs at that worker
    due: float  # seconds until the next one may pass


class GateFacts(TypedDict):
    """The gate at which the client's publish waits."""

    resource: str  # "node/worker"
    publishes: int  # that the resource has not processed yet
    bytes: int
    delay: float  # seconds beyond what it takes without load
    refuses: bool  # other work fills the resource, or it is away, and no publish passes
    trouble: str  # of a log: why nothing can be appended to it now; "": that is not known


class HeldFacts(TypedDict):
    """The client is throttled now."""

    reason: str  # label of a PauseReason
    since: float
    due: float | None  # seconds until it continues, by the present state; None: when its gate has room
    patience: float | None  # seconds until its publish is not accepted; None: never, as a quota refills
    gate: GateFacts | None
    limit: str  # the rate of the quota that throttles it; "": it is not a quota
    unread: int  # bytes that were received and not processed
    honoured: bool  # its keep alive is suspended meanwhile


class PublishFacts(TypedDict):
    """The client's last publish that overload protection judged, and its cost in credits."""

    waits: bool  # it is not accepted yet
    size: int
    receivers: int
    stored: int  # of the receivers, those that store it
    cost: int
    base: int
    for_bytes: int
    for_deliveries: int
    for_storing: int
    for_retaining: int
    for_qos: int
    needs: list[str]  # resources


class PriceFacts(TypedDict):
    """What a publish costs in credits, as configured in overload.cost."""

    publish: int
    bytes_per_credit: int
    delivery: int
    stored: int  # for each receiver that stores it, in addition; 0: no session is stored
    retained: int
    qos: int


class CreditFacts(TypedDict):
    balance: int
    cap: int
    refill: float  # each 200 ms


class ContentionFacts(TypedDict):
    """A contended resource that the client's publish needs, and the worker that reports it."""

    resource: str
    node: str
    worker: int
    signal: str  # that worker's highest signal, or the one of this resource
    value: float  # in targets
    target: float  # seconds, or a share


class LevelFacts(TypedDict):
    """The level in force, and the signal that is its cause."""

    enabled: bool
    level: float  # of the cluster, 0 to 10
    node_level: float
    worker_level: float
    cause: str  # "": nothing
    cause_node: str
    cause_worker: int
    value: float  # of that signal, in targets
    target: float  # seconds, or a share


class LimitFacts(TypedDict):
    """A quota on the client's publishes."""

    name: str  # as QUOTA_SESSION_MESSAGES
    rate: str
    room: float  # messages or bytes that may pass now, at QoS 1 and 2


class ReaderFacts(TypedDict):
    """What waits to be sent to the client, and how the client reads."""

    writable: bool
    unsent: int  # bytes
    high: int
    low: int
    stalled: float | None  # seconds since it read a byte; None: it reads all that it is sent
    patience: float  # seconds of that after which it is closed
    unacknowledged: int
    window: int
    waiting: int
    may_wait: int


class PaceFacts(TypedDict):
    """The client catches up: what waited while it was away is delivered to it at a pace."""

    messages: int  # a second; 0: any number
    bytes: int  # a second; 0: any number
    left: int  # messages


class LossFacts(TypedDict):
    """Messages that did not reach the client, for one reason."""

    reason: str  # label of a DropReason
    count: int
    first: float  # ago
    last: float  # ago


class DecisionFacts(TypedDict):
    """A recent decision about the client, made *times* times in succession."""

    kind: int  # as in admit.py
    reason: str
    first: float  # ago
    last: float  # ago
    times: int


class OverrideFacts(TypedDict):
    """The limits that an administrator set for the client."""

    rate: str  # "": the configured one
    exempt: bool
    left: float
    by: str
    reason: str


class ConfiguredFacts(TypedDict):
    """The table of [[clients.overrides]] that applies to the client."""

    by: str  # "client", "user" or "pattern"
    name: str
    settings: str  # as in the file
    exempt: bool


class StoreFacts(TypedDict):
    """Durable sessions of a worker that cannot be stored now."""

    resource: str
    why: str  # the label of a StoreFailure
    replicas: int  # that have what was stored last; of interest if some are missing
    needed: int  # replicas that have to have it; 0: none


class SharedLogFacts(TypedDict):
    """The log of a filter that an APPLICATION client shares."""

    name: str  # of the share
    filter: str
    topic: str
    partitions: int  # 0: not known
    reads: list[int]  # the partitions that the client has
    waits: str  # why it has none, or is about to have none; "": it takes part
    trouble: str  # why the log, or a partition that it has, cannot be used now; "": nothing is known to be wrong


class LogFacts(TypedDict):
    """The log that has the messages of an APPLICATION client."""

    topic: str
    trouble: str  # why it cannot be used now; "": nothing is known to be wrong
    parting: bool  # the client is to be a DEVICE
    shared: list[SharedLogFacts]


class LogTroubleFacts(TypedDict):
    """The logs that a worker appends to, while something is wrong with one of them."""

    resource: str
    why: str


class BackboneFacts(TypedDict):
    """The inbound backbone of the node."""

    lag: float  # seconds that the oldest publish waits to be dispatched; 0.0: none waits
    behind: int  # records of which not all publishes are done
    trouble: str  # why nothing is accepted at the worker of the client; "": nothing is known to be wrong


class Facts(TypedDict):
    client: str
    node: str
    worker: int
    connection: ConnectionFacts | None
    turns: TurnFacts | None
    connecting: ConnectingFacts | None
    session: SessionFacts | None
    ended: EndFacts | None  # the last connection that had a session
    refused: EndFacts | None  # the last refused CONNECT with this client id
    held: HeldFacts | None
    publish: PublishFacts | None
    prices: PriceFacts
    credits: CreditFacts | None
    contended: list[ContentionFacts]
    level: LevelFacts
    limits: list[LimitFacts]
    reader: ReaderFacts | None
    pace: PaceFacts | None
    losses: list[LossFacts]  # since its session is at this worker, and others that it is still to be told of
    untold: int  # messages of these that it asked to be told of, and was not
    decisions: list[DecisionFacts]  # the latest is the last
    override: OverrideFacts | None
    configured: ConfiguredFacts | None
    unacknowledged: int  # publishes of the client that are accepted, and have receivers that are not done with them
    long: int  # of them, those that have sessions read, for which the client has to wait
    logged: int  # of them, those that wait for logs of APPLICATION clients: the client has to wait for these, too
    stores: list[StoreFacts]  # of all workers
    log: LogFacts | None  # None: it is no APPLICATION client
    logs: list[LogTroubleFacts]  # of all workers
    backbone: BackboneFacts | None  # None: publishes are delivered at once
    unanswered: list[int]  # workers that did not answer


def knows(facts: Facts) -> bool:
    """Whether *facts* say anything about the client itself."""
    here = facts["connection"] or facts["connecting"] or facts["session"]
    return bool(here or facts["ended"] or facts["refused"])


def together(found: list[Facts], unanswered: list[int]) -> Facts | None:
    """The facts of a node about one client, from those of its workers; None: there are none.

    They are those of the worker that has the connection, else of the one that has the session. The last disconnect and
    the last refusal are the latest of all workers, stores and logs those of all of them, and the backbone is behind as
    far as that of any.
    """
    known = [facts for facts in found if knows(facts)]
    if not known:
        return None
    known.sort(key=_nearness)
    first = known[0]
    first["ended"] = _latest([facts["ended"] for facts in known])
    first["refused"] = _latest([facts["refused"] for facts in known])
    first["stores"] = [store for facts in found for store in facts["stores"]]
    first["logs"] = [log for facts in found for log in facts["logs"]]
    backbone = first["backbone"]
    if backbone is not None:
        others = [facts["backbone"] for facts in found if facts["backbone"] is not None]
        backbone["lag"] = max([other["lag"] for other in others])
        backbone["behind"] = sum([other["behind"] for other in others])
    first["unanswered"] = unanswered
    return first


def _nearness(facts: Facts) -> int:
    if facts["connection"] is not None:
        return 0
    if facts["connecting"] is not None:
        return 1
    return 2 if facts["session"] is not None else 3


def _latest(ends: list[EndFacts | None]) -> EndFacts | None:
    latest: EndFacts | None = None
    for end in ends:
        if end is not None and (latest is None or end["ago"] < latest["ago"]):
            latest = end
    return latest
