# What a backtest found, in sentences.
from typing import Final

from analytics.backtest.outcome import Outcome

SAME_S: Final = 0.05  # seconds of difference that are none
MOST: Final = 0.5  # of the time held: who has more than that is named


def sentences(name: str, was: Outcome, would: Outcome, estimate: bool) -> str:
    """What the policy *name* would have changed."""
    if not estimate:
        return f"{name} is what was in force, so what is recorded is what it makes: {_happened(was)}"
    parts = [_held(was, would), _level(was, would), _turned_away(was, would), _waits(was, would)]
    return f"Under {name} (an estimate), {'; '.join(part for part in parts if part)}."


def recorded(was: Outcome) -> str:
    return f"As it was: {_happened(was)}"


def trust(was: Outcome, checked: Outcome) -> str:
    """How far the estimates are to be trusted: what the same model makes of the policy that was in force."""
    return (
        f"The same estimate of the policy that was in force has {_time(checked.held())} held instead of the "
        f"{_time(was.held())} that were, and a peak of level {_shown(checked.level_peak)} instead of "
        f"{_shown(was.level_peak)}: so far it is to be trusted. Publishes arrive in it when they did, so what a client "
        "sent later because it was held comes later here, too."
    )


def _happened(was: Outcome) -> str:
    held = "nobody was held back"
    if was.clients:
        held = f"{_clients(len(was.clients))} held back for {_time(was.held())} in all{_mostly(was)}"
        held = held.replace(" held", " was held" if len(was.clients) == 1 else " were held", 1)
    lost = _lost(was)
    parts = [held, f"the level peaked at {_shown(was.level_peak)}"]
    if lost:
        parts.append(f"{_publishes(lost)} {'was' if lost == 1 else 'were'} turned away")
    return f"{'; '.join(parts)}."


def _held(was: Outcome, would: Outcome) -> str:
    if not would.clients:
        return "nobody would have been held back" + (f", {_time(was.held())} less" if was.held() > SAME_S else "")
    more = would.held() - was.held()
    if abs(more) < SAME_S:
        difference = "as long as was recorded"
    else:
        difference = f"{_time(abs(more))} {'more' if more > 0 else 'less'}"
    return (
        f"{_clients(len(would.clients))} would have been held back for {_time(would.held())} in all, "
        f"{difference}{_mostly(would)}"
    )


def _mostly(outcome: Outcome) -> str:
    client, seconds = max(outcome.clients.items(), key=lambda item: item[1])
    if len(outcome.clients) == 1:
        return f" ({client})"
    return f", most of it {client}" if seconds > MOST * outcome.held() else ""


def _level(was: Outcome, would: Outcome) -> str:
    before, after = _shown(was.level_peak), _shown(would.level_peak)
    if before != after:
        return f"the level would have peaked at {after} instead of {before}"
    return f"the level would have peaked at {after} as well"


def _turned_away(was: Outcome, would: Outcome) -> str:
    before, after = _lost(was), _lost(would)
    if not before and not after:
        return ""
    if before == after:
        return f"{_publishes(after)} would have been turned away as well"
    return f"{_publishes(after) if after else 'nothing'} would have been turned away instead of {before or 'nothing'}"


def _waits(was: Outcome, would: Outcome) -> str:
    before, after = was.wait_of(0.99), would.wait_of(0.99)
    if abs(after - before) < SAME_S:
        return ""
    return f"of a hundred publishes 99 would have been taken {_within(after)} instead of {_within(before)}"


def _lost(outcome: Outcome) -> int:
    counted = sum(sum(each.values()) for each in (outcome.dropped, outcome.refused, outcome.closed))
    return counted + outcome.lost


def _shown(level: float) -> int:
    return -int(-level // 1)


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def _publishes(count: int) -> str:
    return "1 publish" if count == 1 else f"{count} publishes"


def _within(seconds: float) -> str:
    return f"within {_time(seconds)}" if seconds > 0.0 else "at once"


def _time(seconds: float) -> str:
    if seconds <= 0.0:
        return "0 s"
    return f"{seconds:.2f} s" if seconds < 1.0 else f"{seconds:.1f} s"
