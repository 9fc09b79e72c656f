# The trace of a worker: a file with the decisions of overload protection, and what is needed to replay them.
import time

from broker.config.sources import described
from broker.metrics.interval import IntervalMetrics
from broker.overload.trace.recorder import TraceRecorder
from broker.protocol.essentials import Essentials


def trace_recorder(base: Essentials, metrics: IntervalMetrics, file: str) -> TraceRecorder:
    """A recorder whose trace in *file* begins with the settings of overload protection."""
    settings = {key: value for key, value in described(base.config).items() if key.startswith("overload.")}
    about = {**metrics.recorder.about, "began": base.clock(), "wall": time.time(), "settings": settings}
    return TraceRecorder(file, base.config.overload.trace, base.log, about)
