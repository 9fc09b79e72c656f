# The results of a backtest as sentences.
from typing import Final

from analytics.backtest.outcome import Outcome

SAME_S: Final = 0.05  # smaller differences in seconds count as equal
# Signals that do not follow from publishes alone.
RECORDED: Final = ("outbound", "memory", "redis", "connect", "topology")
MOST: Final = 0.5  # share of the throttled time: a client with more is named


def sentences(name: str, was: Outcome, would: Outcome, estimate: bool) -> str:
    """Return what the policy *name* would have changed."""
    if not estimate:
        return f"{name} is the recorded policy, so its outcome is the recorded one: {_happened(was)}"
    parts = [_throttled(was, would), _level(was, would), _lost_publishes(was, would), _waits(was, would)]
    return f"Under {name} (an estimate), {'; '.join(part for part in parts if part)}."


def recorded(was: Outcome) -> str:
    return f"Recorded: {_happened(was)}"


def trust(was: Outcome, checked: Outcome) -> str:
    """Return how accurate the estimates are: the estimate for the recorded policy beside the recorded outcome."""
    return (
        f"Accuracy: for the recorded policy, the same estimate has a throttled time of {_time(checked.throttled())} "
        f"(recorded: {_time(was.throttled())}) and a peak level of {shown(checked.level_peak)} "
        f"(recorded: {shown(was.level_peak)}). Publishes arrive at their recorded times: a publish that a client sent "
        "later because it was throttled arrives as late in every estimate."
    )


def weak(was: Outcome) -> str:
    """Return a warning if signals that an estimate takes as recorded raised the level; "" if none did."""
    seconds = {name: was.cause_s[name] for name in RECORDED if was.cause_s.get(name, 0.0) > SAME_S}
    if not seconds:
        return ""
    share = sum(seconds.values()) / max(sum(was.cause_s.values()), SAME_S)
    return (
        f"The estimate is weak: for {share:.0%} of the time above level 0 the cause was {', '.join(seconds)}. "
        "An estimate takes the values of such signals as recorded, though another policy would have changed them."
    )


def _happened(was: Outcome) -> str:
    throttled = "no client was throttled"
    if was.clients:
        verb = "was" if len(was.clients) == 1 else "were"
        throttled = f"{_clients(len(was.clients))} {verb} throttled for {_time(was.throttled())} in total{_mostly(was)}"
    lost = _lost(was)
    parts = [throttled, f"the level peaked at {shown(was.level_peak)}"]
    if lost:
        parts.append(f"{_publishes(lost)} {'was' if lost == 1 else 'were'} lost")
    return f"{'; '.join(parts)}."


def _throttled(was: Outcome, would: Outcome) -> str:
    if not would.clients:
        return "no client would have been throttled" + (
            f", {_time(was.throttled())} less" if was.throttled() > SAME_S else ""
        )
    more = would.throttled() - was.throttled()
    if abs(more) < SAME_S:
        difference = "as long as recorded"
    else:
        difference = f"{_time(abs(more))} {'more' if more > 0 else 'less'}"
    return (
        f"{_clients(len(would.clients))} would have been throttled for {_time(would.throttled())} in total, "
        f"{difference}{_mostly(would)}"
    )


def _mostly(outcome: Outcome) -> str:
    client, seconds = max(outcome.clients.items(), key=lambda item: item[1])
    if len(outcome.clients) == 1:
        return f" ({client})"
    return f", most of it {client}" if seconds > MOST * outcome.throttled() else ""


def _level(was: Outcome, would: Outcome) -> str:
    before, after = shown(was.level_peak), shown(would.level_peak)
    if before != after:
        return f"the level would have peaked at {after} instead of {before}"
    return f"the level would have peaked at {after} as well"


def _lost_publishes(was: Outcome, would: Outcome) -> str:
    before, after = _lost(was), _lost(would)
    if not before and not after:
        return ""
    if before == after:
        return f"{_publishes(after)} would have been lost as well"
    return f"{_publishes(after) if after else 'no publish'} would have been lost instead of {before or 'none'}"


def _waits(was: Outcome, would: Outcome) -> str:
    before, after = was.wait_of(0.99), would.wait_of(0.99)
    if abs(after - before) < SAME_S:
        return ""
    return f"99 % of the publishes would have been accepted {_within(after)} instead of {_within(before)}"


def _lost(outcome: Outcome) -> int:
    counted = sum(sum(each.values()) for each in (outcome.dropped, outcome.refused, outcome.closed))
    return counted + outcome.lost


def shown(level: float) -> int:
    """The level as `weir overload` shows it: rounded up."""
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
