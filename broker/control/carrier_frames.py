# The frames of the link between the supervisor and the carrier.
#
# The supervisor sends a CarrierAssignment first. The carrier sends LoopStarted, then CarrierReady once its log can be
# used, or CannotStart as its last frame, and a StatisticsReport each second.
from dataclasses import dataclass
from typing import Any, Final, get_args

from broker.control.frame_codec import Frame, FrameDecoder
from broker.control.frames import CannotStart, LoopStarted, RedisMoved, ReopenLog, StatisticsReport
from broker.store.redis.address import RedisAddress
from broker.worker_id import WorkerId


@dataclass(frozen=True)
class CarrierAssignment(Frame):
    """All that a new carrier needs; the first frame."""

    node: str
    incarnation: int  # no other carrier has or had the same
    config: dict[str, Any]  # by key, for `restored()` of broker/config/sources.py
    heartbeat: int  # descriptor of the shared memory
    log: int  # descriptor that log lines are written to
    log_path: str  # the file behind it; "": none
    redis: RedisAddress
    required: bool  # the carrier is to end if its log cannot be used at its start


@dataclass(frozen=True)
class NewWorker(Frame):
    """A worker has started. The descriptors of the data lane and of the control lane come with this frame."""

    worker: WorkerId


@dataclass(frozen=True)
class Stop(Frame):
    """End."""


@dataclass(frozen=True)
class CarrierReady(Frame):
    """The log can be used; or it cannot, and that is no reason to end."""


ToCarrier = CarrierAssignment | NewWorker | ReopenLog | RedisMoved | Stop
FromCarrier = LoopStarted | CarrierReady | StatisticsReport | CannotStart

TO_CARRIER: Final[FrameDecoder[ToCarrier]] = FrameDecoder(get_args(ToCarrier))
FROM_CARRIER: Final[FrameDecoder[FromCarrier]] = FrameDecoder(get_args(FromCarrier))
