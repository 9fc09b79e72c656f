# The format of traces: kinds of records, and values that occur in several of them.
#
# A trace has all that `admit` went by and what it decided, so that the same can be decided again, or differently under
# another policy. It is a stream of msgpack arrays, the first element of each is the kind of the record.
#
# A trace begins while the worker is at work, so the state of a gate or an account stands in it where that gate or
# account occurs first. What happens to a gate or to the level is recorded right before it is done, and every record
# belongs to the slice before it. What follows from a decision (gates and accounts are charged) is not in the trace: the
# player decides again and charges them itself. So a publish takes a few tens of bytes, and a run of QoS 0 publishes
# is one record.
#
# Two kinds of records are there for other policies only, as `admit` does not go by them: what was measured at each step
# of the level, and when a paused client was read again.
from typing import Any, Final

from broker.overload.admit import Verdict
from broker.reasons import CloseReason, DropReason, PauseReason, PublishRefusal

VERSION: Final = 4
# A trace of version 2 has no names of gates; one of version 3 does not say how many receivers store a publish.
READABLE: Final = (2, 3, VERSION)
LARGEST: Final = 1 << 30  # bytes of a trace that is replayed

# Kinds of records, and the fields behind the kind.
BEGIN: Final = 0  # version, state of the ledger, about
SLICE: Final = 1  # now, contended resources
LEVEL: Final = 2  # level in force
GATE: Final = 3  # resource, its bit, state; gates are numbered as they occur. Version 2: bit, state
ACCOUNT: Final = 4  # zero, client; accounts are numbered as they occur
TAKE: Final = 5  # gate, count, bytes: publishes that passed without being judged, such as a will
DONE: Final = 6  # gate, count, bytes, latency
PROCESSED: Final = 7  # gate, bytes
RESET: Final = 8  # gate
PUBLISH: Final = 9  # account, credits spent unseen, gates, whether one is shut, answer of quotas, Publish, verdict
RUN: Final = 10  # account, spent unseen, gates, room in quotas, longest, price, exempt, count, bytes, cost, deliveries
SIGNALS: Final = 11  # [name, bit of its resource] of each signal, in the order that MEASURED has from now on
MEASURED: Final = 12  # a step of the level: values of the signals, highest level and contention of other workers
RELEASED: Final = 13  # account, whether its connection is gone


class TraceError(Exception):
    """Bytes that are not a trace. The text says what is wrong with them."""


def packed_bits(bits: int) -> bytes:
    """A set of resources: msgpack has no number for more than 64."""
    return bits.to_bytes(bits.bit_length() // 8 + 1, "little")


def unpacked_bits(data: bytes) -> int:
    return int.from_bytes(data, "little")


def packed_verdict(verdict: Verdict | None) -> tuple[int, str, float] | None:
    """*verdict* without its gate."""
    return None if verdict is None else (verdict.kind, _name(verdict), verdict.until)


def unpacked_verdict(fields: list[Any] | None) -> Verdict | None:
    return None if fields is None else Verdict(fields[0], _REASONS[fields[1]], fields[2])


def _name(verdict: Verdict) -> str:
    reason = verdict.reason
    return "" if reason is None else f"{type(reason).__name__}.{reason.name}"


_REASONS: Final[dict[str, DropReason | PauseReason | PublishRefusal | CloseReason]] = {
    f"{reasons.__name__}.{reason.name}": reason
    for reasons in (DropReason, PauseReason, PublishRefusal, CloseReason)
    for reason in reasons
}
