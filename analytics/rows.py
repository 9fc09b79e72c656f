# The rows of the analysis: written by the job, read by the dashboard and by other programs.
#
# Each row is a JSON object under a key of analytics/keys.py. Times are Unix times in seconds, by the clocks of the
# nodes. Counters count within the span of their row, so that rows can be added up.
from typing import Final, Literal, TypedDict

VERSION: Final = 3  # of the rows and of the checkpoint; a job refuses a checkpoint of another version
SPANS: Final = (1, 10, 60)  # seconds of the windows


class Hitter(TypedDict):
    """A costly client or topic."""

    name: str
    node: str  # with the highest cost; "" where the node does not matter
    cost: int  # in the units of the metrics record
    messages: int
    bytes: int
    paused_ms: int


class Figures(TypedDict):
    """Figures of a worker, a node, or the cluster."""

    level: int  # the highest, 0 to 10
    cause: str  # the signal that raised the level; "" without overload
    cause_worker: str  # "NODE/NUMBER" of that signal; "" without overload
    workers: int  # that reported in the span
    throttled: int  # clients throttled at the same time, summed over workers; the maximum of the span
    connected: int  # clients; the last value
    non_writable: int  # slow readers; the maximum
    credits_per_tick: int  # the minimum
    average_credits: float  # the minimum
    paused_ms: int  # by overload protection and quotas, summed over clients
    messages_in: int
    messages_out: int
    dropped: dict[str, int]  # by reason
    refused: dict[str, int]  # by reason; includes refused CONNECTs
    p99_ms: float  # the maximum over workers


class Window(TypedDict):
    """A time span of the whole cluster. The row is replaced, under the same start, when more records arrive for it."""

    start: int  # a multiple of *span*
    span: int  # seconds: one of SPANS
    cluster: Figures
    nodes: dict[str, Figures]  # by name
    worker_levels: dict[str, int]  # by "NODE/NUMBER"; levels above 0 only


class Share(TypedDict):
    name: str
    share: float  # 0 to 1, of the cost of the overloaded workers in the episode


class Slowed(TypedDict):
    """A node whose clients were throttled because of an overload."""

    node: str  # "": nodes beyond those that the analysis has room for
    throttled_most: int  # the maximum of clients throttled at the same time
    paused_ms: int  # by overload protection, summed over clients


class Overload(TypedDict):
    """What episodes and incidents have in common."""

    id: str  # its first second and resource; never ""; the same in every version of the row
    start: float
    end: float | None  # the end of its last second; None: it is open
    state: Literal["open", "closed", "merged"]  # merged: readers delete it, a late record made it part of another one
    peak: int  # the highest level
    peak_at: float
    cause: str  # the signal with the greatest sum of level times seconds; "connects": more CONNECTs than are accepted
    cause_worker: str  # "NODE/NUMBER"
    weight: int  # of the cause: the sum of level times seconds
    cost: int  # of the incoming publishes of the overloaded workers
    nodes: list[str]  # with overloaded workers; at most 256
    further_nodes: bool  # there were more
    slowed: list[Slowed]  # at most 10, the longest throttled first
    slowed_nodes: int  # of which there are so many
    culprits: list[Share]  # at most 5 clients, the most costly first
    clients: list[Hitter]  # at most 10, of the affected nodes
    topics: list[Hitter]
    throttled: list[Hitter]  # at most 10 clients, the longest throttled first
    throttled_most: int  # clients throttled at the same time, at most
    paused_ms: int
    dropped: dict[str, int]
    refused: dict[str, int]
    connects: int  # CONNECT packets received
    connects_refused: int
    lost_seconds: int  # missing records, each of one second of one worker
    interrupted: bool  # the analysis lost its checkpoint before the end; `end` is the last second it knew
    story: list[str]  # sentences for the operator


class Episode(Overload):
    """An overload of a resource. episodes.py defines when an episode starts and ends."""

    resource: str  # see resources.py


class Member(TypedDict):
    """An episode of an incident."""

    id: str
    resource: str
    cause: str
    peak: int
    start: float
    end: float | None


class Incident(Overload):
    """Episodes that belong together. incidents.py defines which do."""

    episodes: list[Member]  # at most 20: the highest peaks, in the order of their start
    episodes_all: int  # of which there are so many


class Warning(TypedDict):
    """A rising signal that will raise the level to 5 soon if the trend continues."""

    node: str
    worker: int
    signal: str
    value: float  # the current value, as a multiple of the target
    slope: float  # per second, as a multiple of the target
    seconds_left: float  # until level 5
    said: str  # a sentence


class Skew(TypedDict):
    """An uneven load of workers or nodes."""

    of: str  # "workers of NODE" or "nodes"
    busiest: str
    ratio: float  # of the busiest to the mean, by cost of incoming messages; 1: even
    said: str


class SlowReaders(TypedDict):
    node: str
    worker: int
    non_writable: int
    outbound_share: float  # of the limit, 0 to 1
    since: float


class CreditPressure(TypedDict):
    node: str
    using_credits: int
    connected: int
    average_credits: float
    credits_per_tick: int


class Findings(TypedDict):
    """Observations about the current second and the last minute."""

    at: float  # the current second
    warnings: list[Warning]
    skew: list[Skew]
    slow_readers: list[SlowReaders]
    credit_pressure: list[CreditPressure]
    clients: dict[str, list[Hitter]]  # by window ("10" and "60" seconds): the ten most costly
    topics: dict[str, list[Hitter]]


class Status(TypedDict):
    """The status of the job."""

    version: int
    batch: int
    updated: float  # when the batch was finished, or the job last reported that it is alive
    newest: float  # the newest second of all records
    delay_s: float  # from `newest` to the end of the batch
    batch_s: float  # duration of the batch
    records: int  # in the batch
    duplicates: int  # in the batch
    late: int  # records that arrived after the watermark, in all batches
    unfit: int  # entries that are not valid records, in all batches
    lost: int  # entries that the log deleted before they were read, in all batches
    clocks: dict[str, float]  # nodes of the batch whose clock is wrong: seconds ahead (behind, if negative)
