# The output of `weir simulate`: the recorded outcome, the outcome of each policy, and sentences that compare them.
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from analytics.backtest.outcome import Outcome
from analytics.backtest.policy import Policy
from analytics.backtest.run import Backtest
from analytics.backtest.words import recorded, sentences, shown, trust, weak
from cli.clients import visible
from cli.overload_view import seconds
from cli.printing import counted, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_CLIENTS: Final = 10
OVERLOADED: Final = 5  # the level from which on an operator cares
Row = tuple[str, Callable[[Outcome], str]]

ROWS: Final[list[Row]] = [
    ("publishes", lambda one: str(one.publishes)),
    ("  accepted", lambda one: str(one.accepted)),
    ("  waiting at the end", lambda one: str(one.waiting)),
    ("clients throttled", lambda one: str(len(one.clients))),
    ("  total time", lambda one: seconds(one.throttled())),
    ("highest level", lambda one: str(shown(one.level_peak))),
    ("  time above 0", lambda one: seconds(sum(one.level_s[1:]))),
    (f"  time at {OVERLOADED} and more", lambda one: seconds(sum(one.level_s[OVERLOADED:]))),
    ("99 % accepted within", lambda one: seconds(one.wait_of(0.99))),
    ("longest wait", lambda one: seconds(one.longest_wait_s)),
]


def facts(found: Backtest, policies: list[Policy]) -> dict[str, Any]:
    """Return the JSON form of the result."""
    return {
        "traces": found.traces,
        "problems": found.problems,
        "warning": weak(found.recorded) if any(one.estimate for one in found.policies) else "",
        "recorded": _facts(found.recorded, False, recorded(found.recorded)),
        "recorded_estimated": _facts(found.checked, True, trust(found.recorded, found.checked)),
        "policies": [
            {
                "name": one.name,
                "settings": dict(policy.settings),
                "notes": list(policy.notes),
                **_facts(one.outcome, one.estimate, sentences(one.name, found.recorded, one.outcome, one.estimate)),
            }
            for one, policy in zip(found.policies, policies, strict=True)
        ],
    }


def _facts(outcome: Outcome, estimate: bool, text: str) -> dict[str, Any]:
    facts_of = outcome.packed()
    del facts_of["waits"]
    facts_of["clients"] = [{"client": client, "held_s": throttled} for client, throttled in _longest(outcome)]
    facts_of["clients_held"] = len(outcome.clients)
    facts_of |= {"wait_p50_s": outcome.wait_of(0.5), "wait_p99_s": outcome.wait_of(0.99)}
    return {"estimate": estimate, "text": text, "outcome": facts_of}


def screen(found: Backtest, policies: list[Policy]) -> "list[RenderableType]":
    from rich.text import Text

    decisions = sum(one["decisions"] for one in found.traces)
    different = sum(one["different"] for one in found.traces)
    head = f"{counted(len(found.traces), 'trace')}, {seconds(found.recorded.seconds)}, {decisions} decisions"
    parts: list[RenderableType] = [Text(f"{head}, all repeated exactly." if not different else head)]
    if different:
        what = f"{different} decisions differ from the recorded ones: another version of Weir recorded them."
        parts.append(Text(what, style="yellow"))
    parts += [Text(), outcomes(found)]
    if clients := throttled_clients(found):
        parts += [Text(), clients]
    parts += [Text(), Text.from_markup(visible(recorded(found.recorded)))]
    for one, policy in zip(found.policies, policies, strict=True):
        parts.append(Text.from_markup(visible(sentences(one.name, found.recorded, one.outcome, one.estimate))))
        parts += [Text.from_markup(visible(note), style="yellow") for note in policy.notes]
    if any(one.estimate for one in found.policies):
        if warning := weak(found.recorded):
            parts.append(Text(warning, style="yellow"))
        parts.append(Text(trust(found.recorded, found.checked), style="dim"))
    return parts


def outcomes(found: Backtest) -> Any:
    """Return the table of the recorded outcome and the outcomes of all policies."""
    columns = _columns(found)
    table = table_of("", *columns, right=tuple(columns))
    every = [found.recorded, *(one.outcome for one in found.policies)]
    for name, facts_of in ROWS:
        table.add_row(name, *(facts_of(one) for one in every))
    for kind in ("dropped", "refused", "closed"):
        for reason in sorted({reason for one in every for reason in getattr(one, kind)}):
            table.add_row(f"{kind}: {reason}", *(str(getattr(one, kind).get(reason, 0)) for one in every))
    for reason in sorted({reason for one in every for reason in one.held_s}):
        table.add_row(f"throttled: {reason}", *(seconds(one.held_s.get(reason, 0.0)) for one in every))
    for name in sorted({name for one in every for name in one.delays_s}):
        what = "longest lag" if name == "lag" else f"longest delay of {visible(name)}"
        table.add_row(what, *(seconds(one.delays_s.get(name, 0.0)) for one in every))
    return table


def throttled_clients(found: Backtest) -> Any:
    """Return the table of the clients that were throttled longest, or would have been; None if there are none."""
    every = [found.recorded, *(one.outcome for one in found.policies)]
    longest: dict[str, float] = {}
    for one in every:
        for client, throttled in _longest(one):
            longest[client] = max(throttled, longest.get(client, 0.0))
    if not longest:
        return None
    columns = _columns(found)
    table = table_of("client throttled for", *columns, right=tuple(columns))
    for client in sorted(longest, key=lambda name: -longest[name])[:MOST_CLIENTS]:
        table.add_row(visible(client), *(seconds(one.clients.get(client, 0.0)) for one in every))
    return table


def _columns(found: Backtest) -> list[str]:
    named = [visible(one.name) + (" (estimate)" if one.estimate else " (in force)") for one in found.policies]
    return ["recorded", *named]


def _longest(outcome: Outcome) -> list[tuple[str, float]]:
    return sorted(outcome.clients.items(), key=lambda item: -item[1])[:MOST_CLIENTS]
