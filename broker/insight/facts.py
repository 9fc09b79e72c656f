# What is known of one client, for whoever asks why it is slow, gone, or gets nothing: the shapes in which a worker
# tells it, the supervisor puts it together, and `weir why --json` prints it.
#
# Clocks are of one process, so a time is told as how long ago it was or how far off it is, in seconds. Credits are
# rounded to whole ones.
from typing import TypedDict


class ConnectionFacts(TypedDict):
    """The connection that it has."""

    address: str
    transport: str
    version: int  # as in CONNECT: 3, 4 or 5
    user: str  # "": nobody verified one
    age: float  # since it was accepted
    silent: float  # since its last packet
    keep_alive: float  # of silence that end it; 0.0: any


class EndFacts(TypedDict):
    """How a connection ended, or was refused before it began."""

    reason: str  # label of a CloseReason
    code: int  # of MQTT 5; 0: there is none
    ago: float
    detail: str
    address: str
    undelivered: int  # messages that waited for it when its session ended


class SessionFacts(TypedDict):
    subscriptions: int
    expiry: int  # seconds that it outlives its connection


class ConnectingFacts(TypedDict):
    """Its CONNECT waits for its turn."""

    waited: float
    waiting: int  # CONNECTs at that worker
    due: float  # when the next one may pass


class GateFacts(TypedDict):
    """The gate at which it waits."""

    resource: str  # "node/worker"
    publishes: int  # under way there
    bytes: int
    delay: float  # seconds beyond what it takes without load
    refuses: bool  # what is no publish fills it, and nobody passes


class HeldFacts(TypedDict):
    """It is held back now."""

    reason: str  # label of a PauseReason
    since: float
    due: float | None  # until it may go on, as things are; None: when its gate has room
    patience: float | None  # until its publish is given up; None: never, as a quota has room in the end
    gate: GateFacts | None
    limit: str  # the rate of the quota that holds it; "": none does
    unread: int  # bytes received and not taken
    honoured: bool  # its keep alive does not run meanwhile


class PublishFacts(TypedDict):
    """The publish of it that was judged last, with what it costs in credits and why."""

    waits: bool  # it is not taken yet
    size: int
    receivers: int
    cost: int
    base: int
    for_bytes: int
    for_deliveries: int
    for_retaining: int
    for_qos: int
    needs: list[str]  # resources


class PriceFacts(TypedDict):
    """What a publish costs in credits, as configured in overload.cost."""

    publish: int
    bytes_per_credit: int
    delivery: int
    retained: int
    qos: int


class CreditFacts(TypedDict):
    balance: int
    cap: int
    refill: float  # each 200 ms


class ContentionFacts(TypedDict):
    """A resource that its publishes need is contended, and who says so."""

    resource: str
    node: str
    worker: int
    signal: str  # the worst of that worker, or the one that is of this resource
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
    """A quota on what it publishes."""

    name: str  # as QUOTA_SESSION_MESSAGES
    rate: str
    room: float  # messages or bytes that may pass now, at QoS 1 and 2


class ReaderFacts(TypedDict):
    """What it is owed, and how it takes that."""

    writable: bool
    unsent: int  # bytes
    high: int
    low: int
    stalled: float | None  # since it took a byte; None: it takes all that it is sent
    patience: float  # of that until it is closed
    unacknowledged: int
    window: int
    waiting: int
    may_wait: int


class DecisionFacts(TypedDict):
    """What was decided about it lately: *times* the same."""

    kind: int  # as in admit.py
    reason: str
    first: float  # ago
    last: float  # ago
    times: int


class OverrideFacts(TypedDict):
    """What an administrator decided for it."""

    rate: str  # "": that of the configuration
    exempt: bool
    left: float
    by: str
    reason: str


class Facts(TypedDict):
    client: str
    node: str
    worker: int
    connection: ConnectionFacts | None
    connecting: ConnectingFacts | None
    session: SessionFacts | None
    ended: EndFacts | None  # its last connection that had a session
    refused: EndFacts | None  # the last CONNECT in its name that was refused
    held: HeldFacts | None
    publish: PublishFacts | None
    prices: PriceFacts
    credits: CreditFacts | None
    contended: list[ContentionFacts]
    level: LevelFacts
    limits: list[LimitFacts]
    reader: ReaderFacts | None
    dropped: dict[str, int]  # what it did not get while it had this session, by DropReason
    decisions: list[DecisionFacts]  # the latest last
    override: OverrideFacts | None
    unanswered: list[int]  # workers that could not be asked


def knows(facts: Facts) -> bool:
    """Whether they say anything of the client itself."""
    here = facts["connection"] or facts["connecting"] or facts["session"]
    return bool(here or facts["ended"] or facts["refused"])


def together(found: list[Facts], unanswered: list[int]) -> Facts | None:
    """What the workers of a node know of one client, in one; None: nothing.

    The worker that has its connection says most of it, else the one that has its session; how it ended and was refused
    last is remembered where that happened.
    """
    known = [facts for facts in found if knows(facts)]
    if not known:
        return None
    known.sort(key=_nearness)
    first = known[0]
    first["ended"] = _latest([facts["ended"] for facts in known])
    first["refused"] = _latest([facts["refused"] for facts in known])
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
