# The terminal output of `weir bench`: a progress bar, then the figures and a histogram.
import math
from types import TracebackType
from typing import TYPE_CHECKING, Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from cli.load.conductor import Watcher
from cli.load.histogram import Histogram
from cli.load.plan import Plan
from cli.load.report import Summary, quantiles

if TYPE_CHECKING:
    from cli.endpoint import Endpoint

BAR: Final = 40  # characters of the longest bar
EIGHTHS: Final = " ▏▎▍▌▋▊▉"
ASCII_BAR: Final = "#"
STEPS: Final = (1, 2, 5)  # of each power of ten: the upper ends of the rows of the histogram


class Progress(Watcher):
    """Progress bars for connecting and for publishing; without output if *stream* is not a terminal."""

    def __init__(self, plan: Plan, stream: TextIO) -> None:
        self._plan = plan
        console = Console(file=stream)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        self._bars = Bars(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._connections = plan.publishers + plan.subscribers
        self._connecting = self._bars.add_task("connecting", total=self._connections, figures="")
        self._running = self._bars.add_task("publishing", total=1.0, figures="", visible=False)
        self._before = (0.0, 0)  # seconds, received

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def connecting(self, up: int) -> None:
        self._bars.update(self._connecting, completed=up, figures=f"{up} of {self._connections}")

    def running(self, seconds: float, up: int, sent: int, received: int) -> None:
        plan = self._plan
        done = max(
            seconds / plan.seconds if plan.seconds else 0.0,
            sent / plan.messages if plan.messages else 0.0,
        )
        before, received_before = self._before
        if seconds - before < 0.5:  # faster changes are unreadable
            self._bars.update(self._running, completed=min(1.0, done), visible=True)
            return
        rate = (received - received_before) / (seconds - before)
        self._before = (seconds, received)
        figures = f"{seconds:.0f} s  {count(sent)} sent  {count(received)} received  {count(round(rate))}/s"
        if up < self._connections:
            figures += f"  {self._connections - up} connections missing"
        self._bars.update(self._running, completed=min(1.0, done), visible=True, figures=figures)


def render(plan: Plan, endpoint: "Endpoint", summary: Summary) -> None:
    """Print the results."""
    console = Console(highlight=False, markup=False)
    console.print(Text.assemble((describe(plan), "bold"), f", against {endpoint}"), soft_wrap=True)
    console.print()
    for label, phrases in _figures(plan, summary):
        console.print(Text.assemble((f"{label:<14}", "cyan"), "  ".join(phrases)), soft_wrap=True)
    if summary.latencies.count:
        console.print()
        for line in _histogram(summary.latencies, console.encoding.lower().startswith("utf")):
            console.print(line, soft_wrap=True)
    for note in summary.notes:
        console.print()
        console.print(note, style="yellow", soft_wrap=True)
    if summary.interrupted:
        console.print()
        console.print("Stopped early by Ctrl-C.", style="yellow")


def describe(plan: Plan) -> str:
    """The load in a few words."""
    if plan.pattern == "pairs" and plan.publishers == plan.subscribers:
        who = f"{plan.publishers} pair{'s' if plan.publishers > 1 else ''}"
    else:
        who = f"{plan.pattern}, {plan.publishers} to {plan.subscribers}"
    pace = f"{count(plan.rate)} messages/s" if plan.rate else f"window {plan.window}"
    version = {3: "3.1", 4: "3.1.1", 5: "5"}[plan.version]
    return f"{who}, QoS {plan.qos}, {plan.payload} bytes, {pace}, MQTT {version}"


def _figures(plan: Plan, summary: Summary) -> list[tuple[str, list[str]]]:
    """Lines of a label and phrases."""
    megabytes = summary.received_per_s * plan.payload / 1_000_000
    lines = {
        "messages": [
            f"{count(summary.sent)} sent",
            f"{count(summary.received)} received",
            f"{count(summary.lost)} lost",
            f"{count(summary.duplicates)} duplicates",
        ],
        "per second": [
            f"{count(round(summary.sent_per_s))} sent",
            f"{count(round(summary.received_per_s))} received",
            f"{megabytes:.3g} MB of payload",
        ],
        "latency": _times(summary.latencies, ("p50", "p90", "p99", "p99_9", "max")),
        "connecting": [*_times(summary.connect_times, ("p50", "p99", "max")), f"all {time(summary.connecting * 1e6)}"],
        "connections": [
            f"{count(summary.connected)} made",
            f"{count(summary.connections_lost)} lost",
            f"{count(summary.reconnects)} reconnected",
        ],
        "this program": [
            f"{summary.cpu_us_per_message:.2f} us of CPU per message",
            f"{summary.busiest:.0%} of a core",
            f"{plan.processes} process{'es' if plan.processes > 1 else ''}",
        ],
    }
    return [(label, phrases) for label, phrases in lines.items() if phrases]


def _times(histogram: Histogram, names: tuple[str, ...]) -> list[str]:
    if not histogram.count:
        return []
    found = quantiles(histogram)
    return [f"{name.replace('_', '.')} {time(found[name])}" for name in names]


def _histogram(latencies: Histogram, blocks: bool) -> list[Text]:
    rows = coarse(latencies)
    most = max(times for _, times in rows)
    return [
        Text.assemble(
            f"{f'up to {time(upper)}':>12}  {times / latencies.count:>7.2%}  ", (bar(times / most, blocks), "green")
        )
        for upper, times in rows
    ]


def coarse(latencies: Histogram) -> list[tuple[int, int]]:
    """(upper end in us, count) in steps of 1, 2 and 5, without gaps between the first and last non-empty step."""
    found: dict[int, int] = {}
    for upper, times in latencies.buckets():
        power = 10 ** int(math.log10(max(1, upper)))
        end = next(step * power for step in (*STEPS, 10) if upper <= step * power)
        found[end] = found.get(end, 0) + times
    ends = [step * 10**power for power in range(10) for step in STEPS]
    first, last = min(found), max(found)
    return [(end, found.get(end, 0)) for end in ends if first <= end <= last]


def bar(share: float, blocks: bool) -> str:
    """A bar of *share* (0 to 1) of the full length."""
    if not blocks:
        return ASCII_BAR * round(share * BAR)
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def count(number: float) -> str:
    """1 234 567."""
    return f"{number:,.12g}".replace(",", " ")


def time(us: float) -> str:
    """*us* microseconds as text with a suitable unit."""
    if us < 1000:
        return f"{us:.0f} us"
    if us < 1_000_000:
        return f"{us / 1000:.3g} ms"
    return f"{us / 1_000_000:.3g} s"
