# What the dashboard calls things: levels, signals, reasons, and numbers that people read at a glance.
import time
from typing import Final

from broker.insight.explain import place, span
from broker.insight.reason_words import SIGNALS, meaning

LONGEST: Final = 64  # characters of a name; its beginning and its end are shown of a longer one

# By the first level that it is said of: a word, and what it means for clients.
LEVELS: Final = (
    (8, "Overloaded", "Nearly everything is held back, so that the broker stays up."),
    (5, "Holding back hard", "Who costs much is held back; who costs little is still served."),
    (3, "Holding back", "Clients that cost much are slowed down."),
    (1, "Busy", "Clients that cost very much are slowed down a little."),
    (0, "Calm", "Nobody is held back."),
)


def word(level: int) -> tuple[str, str]:
    """What *level* is called, and what it means for clients."""
    return next((name, meaning) for least, name, meaning in LEVELS if level >= least)


def tone(level: int) -> str:
    """A class of the style sheet; the words say the same."""
    return "calm" if level == 0 else "busy" if level < 5 else "hot"


def signal(name: str) -> str:
    """What the signal *name* says of a worker."""
    words = SIGNALS[name].words if name in SIGNALS else f"{place(name)} takes longer than without load"
    return f"{words} ({name})"


def cause(name: str) -> str:
    """The signal *name*, shortly."""
    return name if name in SIGNALS or "/" not in name else f"{place(name)} is slow"


def reason(label: str) -> str:
    """What the reason *label* means, whatever it is a reason for; "" if it is not known."""
    return meaning(label)


def count(number: float) -> str:
    """With three digits or so: 999, 1.2k, 45k, 3.1M."""
    for least, unit in ((999_500_000.0, "G"), (999_500.0, "M"), (999.5, "k")):
        if number >= least:
            scaled = number / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{number:.0f}"


def size(number: float) -> str:
    """Bytes, shortly."""
    return f"{count(number)}B"


def share(part: float) -> str:
    return "under 1 %" if 0.0 < part < 0.01 else f"{part:.0%}".replace("%", " %")


def milliseconds(number: float) -> str:
    return f"{number:.3g} ms" if number < 999.5 else span(number / 1e3)


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def day(at: float, now: float) -> str:
    """The date of *at*, "" if it is that of *now*."""
    said = time.strftime("%Y-%m-%d", time.localtime(at))
    return "" if said == time.strftime("%Y-%m-%d", time.localtime(now)) else said


def plural(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def shown(name: str) -> str:
    """A name that a client chose, as it can be shown: short, and nothing in it moves what is around it."""
    visible = "".join(one if one.isprintable() else "�" for one in name)
    if len(visible) <= LONGEST:
        return visible or "(empty)"
    return f"{visible[: LONGEST // 2]}…{visible[-LONGEST // 2 + 1 :]}"
