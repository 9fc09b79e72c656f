# The summary of a load: the combined results of all processes, as JSON, with notes where figures alone would mislead.
from dataclasses import dataclass, field
from typing import Final

from cli.load.conductor import Observed
from cli.load.histogram import Histogram
from cli.load.pacing import STALLED
from cli.load.plan import Plan
from cli.load.process import Result
from cli.reason_words import in_words

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
BUSY: Final = 0.9  # share of a core from which on a process is probably the bottleneck
WAITING: Final = 0.1  # share of the time that a process waits for a core, from which on the machine is too busy
LATE: Final = 1000  # us: the load generator is too slow if 1 % of the messages leave later than that


@dataclass
class Summary:
    """The combined results of all processes; times in us unless noted otherwise."""

    seconds: float  # of publishing
    sent: int
    expected: int  # deliveries
    received: int  # deliveries, including duplicates
    lost: int
    duplicates: int
    disordered: int
    sent_per_s: float
    received_per_s: float
    connected: int
    connecting: float  # seconds until all were up
    connections_lost: int
    connections_missing: int  # at the end
    reconnects: int
    cpu_us_per_message: float  # of the load generator: per delivery, or per message if nothing is delivered
    busiest: float  # share of a core that the busiest process used
    waiting: float  # share of the time that a process waited for a core (the maximum of all)
    latencies: Histogram
    connect_times: Histogram
    lateness: Histogram
    interrupted: bool
    gone: bool
    notes: list[str] = field(default_factory=list)  # explanations of the figures

    def as_json(self) -> dict[str, object]:
        return {
            "seconds": round(self.seconds, 3),
            "sent": self.sent,
            "received": self.received,
            "expected": self.expected,
            "lost": self.lost,
            "duplicates": self.duplicates,
            "out_of_order": self.disordered,
            "sent_per_s": round(self.sent_per_s, 1),
            "received_per_s": round(self.received_per_s, 1),
            "latency_us": quantiles(self.latencies),
            "connections": {
                "connected": self.connected,
                "seconds": round(self.connecting, 3),
                "lost": self.connections_lost,
                "missing_at_end": self.connections_missing,
                "reconnects": self.reconnects,
                "time_us": quantiles(self.connect_times),
            },
            "load_generator": {
                "cpu_us_per_message": round(self.cpu_us_per_message, 3),
                "busiest_process": round(self.busiest, 3),
                "waiting_for_a_core": round(self.waiting, 3),
                "late_us": quantiles(self.lateness),
            },
            "interrupted": self.interrupted,
            "broker_gone": self.gone,
            "notes": self.notes,
            "latency_histogram_us": self.latencies.buckets(),
        }


def quantiles(histogram: Histogram) -> dict[str, float]:
    """Return the usual quantiles, the mean and the maximum of *histogram*."""
    found: dict[str, float] = {name: histogram.quantile(share) for name, share in QUANTILES.items()}
    return {**found, "max": histogram.greatest, "mean": round(histogram.mean(), 1)}


def summarise(plan: Plan, observed: Observed) -> Summary:
    """Combine the results of all processes."""
    results = observed.processes
    latencies, lateness, connect_times = Histogram(), Histogram(), Histogram()
    for one in results:
        latencies.merge(one.latencies)
        lateness.merge(one.lateness)
        for connect_time in one.connect_times:
            connect_times.add(connect_time, 1)
    seconds = max((one.seconds for one in results), default=0.0)
    latest = max((one.latest for one in results), default=0) / 1_000_000
    if plan.rate:
        latest = max(latest, seconds)
    sent, received = sum(one.sent for one in results), sum(one.received for one in results)
    duplicates, expected = sum(one.duplicates for one in results), sum(one.expected for one in results)
    summary = Summary(
        seconds=seconds,
        sent=sent,
        expected=expected,
        received=received,
        lost=max(0, expected - (received - duplicates)),
        duplicates=duplicates,
        disordered=sum(one.disordered for one in results),
        sent_per_s=sent / seconds if seconds else 0.0,
        received_per_s=received / latest if latest else 0.0,
        connected=sum(one.connected for one in results),
        connecting=max((one.connecting for one in results), default=0.0),
        connections_lost=sum(one.lost for one in results),
        connections_missing=sum(one.missing for one in results),
        reconnects=sum(one.reconnects for one in results),
        cpu_us_per_message=sum(one.cpu for one in results) * 1_000_000 / max(1, received or sent),
        busiest=max((one.busy for one in results), default=0.0),
        waiting=max((one.waiting for one in results), default=0.0),
        latencies=latencies,
        connect_times=connect_times,
        lateness=lateness,
        interrupted=observed.interrupted,
        gone=observed.gone,
    )
    summary.notes = [*_of_the_generator(plan, summary), *_of_the_broker(plan, summary, results)]
    return summary


def _of_the_generator(plan: Plan, summary: Summary) -> list[str]:
    """Return notes about limits of the load generator."""
    notes = []
    late = summary.lateness.quantile(0.99)
    if summary.busiest >= BUSY:
        notes.append(
            f"The load generator was the bottleneck: one of its processes used {summary.busiest:.0%} of a core. "
            f"The broker may be faster: use more than --processes {plan.processes}, or another machine."
        )
    elif summary.waiting >= WAITING:
        notes.append(
            f"This machine is too busy for measurements: a process of the load generator waited {summary.waiting:.0%} "
            "of the time for a core. Stop other programs, or use another machine."
        )
    elif late > LATE:
        notes.append(
            f"The load generator was the bottleneck: 1 % of the messages left {late / 1000:.1f} ms late or later, and "
            "not because of the broker. Latencies include this delay: use a lower --rate, or more --processes."
        )
    return notes


def _of_the_broker(plan: Plan, summary: Summary, results: list[Result]) -> list[str]:
    """Return notes about the broker that the figures do not show."""
    notes = []
    overdue, waits = sum(one.overdue for one in results), sum(one.delayed for one in results)
    if overdue or waits > summary.sent / 100:
        notes.append(
            f"The broker did not keep up with --rate {plan.rate:.12g}: {waits} messages left late because it was not "
            f"ready for them, and {overdue} did not leave at all."
        )
    stalls = sum(one.stalls for one in results)
    if stalls:
        notes.append(
            f"Windows made no progress for {STALLED / 1_000_000:g} s, {stalls} times in total: messages in flight "
            "count as lost if they did not arrive later."
        )
    refused = [one for one in results if one.refused]
    if refused:
        count, code = sum(one.refused for one in refused), refused[0].refusal
        notes.append(f"The broker refused {count} messages: {in_words('PUBACK', code)}")
    foreign = sum(one.foreign for one in results)
    if foreign:
        notes.append(f"{foreign} messages of other publishers arrived on these topics; they are not counted.")
    lost = [one for one in results if one.lost]
    if lost:
        first = min(lost, key=lambda one: one.first_lost)
        notes.append(
            f"{summary.connections_lost} connections were lost, the first after {first.first_lost / 1_000_000:.1f} s; "
            f"{summary.reconnects} were reconnected, {summary.connections_missing} were missing at the end: {first.why}"
        )
    return notes
