# What the analysis says, row by row: the job writes these, the dashboard and whoever else wants to read them.
#
# All are JSON objects under the keys of analytics/keys.py. Times are Unix times in seconds, by the clocks of the nodes.
# Everything counted is counted in the span that its row is of, so that rows can be added up.
from typing import Final, Literal, TypedDict

VERSION: Final = 1  # of these rows and of the checkpoint beside them; who finds another one begins anew, or says so
SPANS: Final = (1, 10, 60)  # seconds of the windows that are kept


class Hitter(TypedDict):
    """A client or topic that cost much."""

    name: str
    node: str  # where it was seen most; "" when it does not matter
    cost: int  # units of the metrics record
    messages: int
    bytes: int
    paused_ms: int


class Figures(TypedDict):
    """What can be said of a worker, of a node, and of the cluster alike."""

    level: int  # the highest, 0 to 10
    cause: str  # the signal that raised it; "": at peace
    cause_worker: str  # "NODE/NUMBER" whose signal that is; "" at peace
    workers: int  # that told of the span
    throttled: int  # clients held back by overload protection at once, added over workers; the most of the span
    connected: int  # clients, the last
    non_writable: int  # slow readers, the most
    credits_per_tick: int  # the least
    average_credits: float  # the least
    paused_ms: int  # by overload and quotas, of all clients
    messages_in: int
    messages_out: int
    dropped: dict[str, int]  # by reason
    refused: dict[str, int]  # by reason; the connects that were refused are under their reason, too
    p99_ms: float  # the worst of a worker


class Window(TypedDict):
    """A span of time of the whole cluster. Written again, under the same start, when more becomes known of it."""

    start: int  # a multiple of *span*
    span: int  # seconds: one of SPANS
    cluster: Figures
    nodes: dict[str, Figures]  # by name
    worker_levels: dict[str, int]  # by "NODE/NUMBER", those above 0


class Share(TypedDict):
    name: str
    share: float  # 0 to 1, of the cost of the episode


class Episode(TypedDict):
    """An overload of the cluster: what counts as one, and as its start and end, is said in episodes.py."""

    id: str  # the same for every version of it: its first second, "" never
    start: float
    end: float | None  # the end of its last second; None: it goes on
    state: Literal["open", "closed", "merged"]  # merged: it was a part of an earlier one; whoever has it deletes it
    peak: int  # the highest level
    peak_at: float
    cause: str  # the signal that held the highest level longest; "connects": more wanted to come in than may at once
    cause_worker: str  # "NODE/NUMBER"
    nodes: list[str]  # that took part
    culprits: list[Share]  # clients that cost most, at most 5, the most costly first
    clients: list[Hitter]
    topics: list[Hitter]
    throttled: list[Hitter]  # who was held back longest, at most 10
    throttled_most: int  # clients at once
    paused_ms: int
    dropped: dict[str, int]
    refused: dict[str, int]
    connects: int  # CONNECT packets that came, and
    connects_refused: int
    lost_seconds: int  # seconds of workers that are missing: no record of them ever came
    story: list[str]  # sentences, for people


class Warning(TypedDict):
    """A signal that will reach level 5 soon if it goes on like this."""

    node: str
    worker: int
    signal: str
    value: float  # of its target, now
    slope: float  # of its target, a second
    seconds_left: float  # until level 5
    said: str  # a sentence


class Skew(TypedDict):
    """Who does more than their share."""

    of: str  # "workers of NODE" or "nodes"
    busiest: str
    ratio: float  # of the busiest to the mean, by cost of what came in; 1: even
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
    """What is so now, and over the last minute."""

    at: float  # the second they are of
    warnings: list[Warning]
    skew: list[Skew]
    slow_readers: list[SlowReaders]
    credit_pressure: list[CreditPressure]
    clients: dict[str, list[Hitter]]  # by window: "10" and "60" seconds, the ten that cost most
    topics: dict[str, list[Hitter]]


class Status(TypedDict):
    """How the job is."""

    version: int
    batch: int
    updated: float  # when the batch was done
    newest: float  # the last second that it knows of
    delay_s: float  # from then to `updated`
    batch_s: float  # that the batch took
    records: int  # in the batch
    duplicates: int  # in the batch
    late: int  # too late for the watermark, since the job began
    unfit: int  # records that are none, since the job began
    lost: int  # entries that Redis had cut off before they were read, since the job began
