# The words of the dashboard for levels, signals and reasons, and short forms of numbers. All times are UTC, as in the
# stories of the analysis: the page says so once, at its clock.
import time
from typing import Final

from broker.insight.explain import place, span
from broker.insight.reason_words import SIGNALS, meaning

LONGEST: Final = 64  # characters of a name; of a longer one the beginning and the end are shown

# (lowest level, word, effect on clients)
LEVELS: Final = (
    (8, "Overloaded", "All clients but modest ones are throttled, so that the broker stays available."),
    (5, "Throttling hard", "Costly clients are throttled; other clients are served."),
    (3, "Throttling", "Costly clients are slowed down."),
    (1, "Busy", "Very costly clients are slowed down a little."),
    (0, "Normal", "No worker is overloaded."),
)


def word(level: int) -> tuple[str, str]:
    """Return the word for *level* and its effect on clients."""
    return next((name, meaning) for least, name, meaning in LEVELS if level >= least)


def tone(level: int) -> str:
    """Return the CSS class of *level*."""
    return "calm" if level == 0 else "busy" if level < 5 else "hot"


def signal(name: str) -> str:
    """Return what the signal *name* means, with its name."""
    words = SIGNALS[name].words if name in SIGNALS else f"{place(name)} takes longer than without load"
    return f"{words} ({name})"


def cause(name: str) -> str:
    """Return a short text for the signal *name*."""
    return name if name in SIGNALS or "/" not in name else f"{place(name)} is slow"


def reason(label: str) -> str:
    """Return the meaning of a reason of any kind; "" if the label is unknown."""
    return meaning(label)


def count(number: float) -> str:
    """Format a number with at most three digits: 999, 1.2k, 45k, 3.1M."""
    for least, unit in ((999_500_000.0, "G"), (999_500.0, "M"), (999.5, "k")):
        if number >= least:
            scaled = number / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{number:.0f}"


def latency(number: float) -> str:
    """Format a latency in milliseconds, with three digits below a second, and without an exponent beyond it."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"


def size(number: float) -> str:
    """Format a number of bytes."""
    return f"{count(number)}B"


def share(part: float) -> str:
    return "under 1 %" if 0.0 < part < 0.01 else f"{part:.0%}".replace("%", " %")


def milliseconds(number: float) -> str:
    return f"{number:.3g} ms" if number < 999.5 else span(number / 1e3)


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at))


def day(at: float, now: float) -> str:
    """Return the date of *at*; "" if it is the date of *now*."""
    date = time.strftime("%Y-%m-%d", time.gmtime(at))
    return "" if date == time.strftime("%Y-%m-%d", time.gmtime(now)) else date


def plural(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def shown(name: str) -> str:
    """Return a name chosen by a client in a form that is safe to show: short and without control characters."""
    visible = "".join(one if one.isprintable() else "�" for one in name)
    if len(visible) <= LONGEST:
        return visible or "(empty)"
    return f"{visible[: LONGEST // 2]}…{visible[-LONGEST // 2 + 1 :]}"
