# What `weir overload` prints: lines and tables made of what a node reports (broker/insight/overload_snapshot.py).
#
# An operator in trouble first needs three answers: how bad it is, what causes it, and which clients are throttled. So
# the screen begins with these as sentences; the tables below hold the figures behind them.
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cli.clients import visible
from cli.nodes import short
from cli.printing import counted, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

QUIET: Final = 0.05  # of the target; signals below are only counted
LEVELS: Final = 10
OTHERS: Final = 20  # workers of other nodes that are shown at most

Answer = dict[str, Any]


def calm(answer: Answer) -> str:
    """A sentence that says that there is no overload, or "" if there is some."""
    workers = answer["workers"]
    if any("overload" not in one or not _idle(one["overload"]) for one in workers):
        return ""
    nodes = {said["node"] for one in workers for said in one["overload"]["reports"]["heard"] if said["counts"]}
    others = len(nodes - {answer["node"]})
    who = f"{answer['node']} and {counted(others, 'other node')} are" if others else f"{answer['node']} is"
    return f"No overload: {who} at level 0, and no client is throttled."


def line(answer: Answer) -> str:
    """The state of the node on one line."""
    sentence = calm(answer)
    if sentence:
        return sentence
    found = answering(answer)
    if not found:
        return f"{answer['node']}: no worker answers"
    parts = [f"{answer['node']} level {highest(answer)}{_because(answer)}"]
    parts.append(f"credits {short_credits(min(one['credits']['per_tick'] for one in found))}")
    parts.append(f"throttled {_throttled(found) or 'none'}")
    waiting = sum(one["connects"]["waiting"] for one in found)
    parts.append(f"CONNECTs waiting {waiting}")
    if any(signal["injected_s"] is not None for one in found for signal in one["signals"]):
        parts.append("with injected signals")
    return "  ".join(parts)


def screen(answer: Answer) -> "list[RenderableType]":
    """All sentences and tables, the most important first."""
    from rich.text import Text

    sentence = calm(answer)
    recorded = [Text.from_markup(one) for one in traces(answer)]
    if sentence:
        return [Text(sentence), *recorded]
    parts: list[RenderableType] = [Text.from_markup(one) for one in sentences(answer)]
    parts += recorded
    parts += [Text(), workers_table(answer)]
    held = held_table(answer)
    if held is not None:
        parts += [Text(), held]
    signals, left_out = signals_table(answer)
    if signals is not None:
        parts += [Text(), signals]
    if left_out:
        parts.append(Text(f"{counted(left_out, 'more signal')} below {QUIET:g} of the target", style="dim"))
    others = others_table(answer)
    if others is not None:
        parts += [Text(), others]
    return parts


def sentences(answer: Answer) -> Iterator[str]:
    """Sentences: the level, its cause, the throttled clients."""
    found = answering(answer)
    for one in answer["workers"]:
        if "error" in one:
            yield f"[red]{one['error']}[/red]"
        elif "overload" not in one:
            yield f"[red]Worker {one['worker']} is {one['state']}.[/red]"
    if not found:
        return
    if not found[0]["enabled"]:
        yield (
            "[yellow]Overload protection is off[/yellow] (overload.enabled = false): credits throttle no client; "
            "gates and quotas still do."
        )
    level = highest(answer)
    yield f"[bold]{answer['node']}[/bold]  [{color(level)}]level {level} of {LEVELS}[/{color(level)}]{_because(answer)}"
    credits = min((one["credits"] for one in found), key=_per_tick)
    if level:
        yield (
            f"each client receives {short_credits(credits['per_tick'])} credits every {credits['tick_s'] * 1e3:.0f} "
            f"ms, instead of {credits['when_calm']} at level 0"
        )
    throttled = _throttled(found)
    if throttled:
        yield f"throttled: {throttled}"
    waiting = sum(one["connects"]["waiting"] for one in found)
    if waiting:
        oldest = max(one["connects"]["oldest_s"] for one in found)
        yield f"{counted(waiting, 'CONNECT')} waiting, the oldest for {seconds(oldest)}"
    ignored = _ignored(found)
    if ignored:
        yield f"[dim]reports of other workers since the start: {ignored}[/dim]"


def traces(answer: Answer) -> Iterator[str]:
    """The state of the trace of each worker that records one."""
    for one in answer["workers"]:
        trace = one["overload"]["trace"] if "overload" in one else None
        if trace is None:
            continue
        size = f"{short(trace['bytes'])}B of {short(trace['limit_bytes'])}B in {visible(trace['file'])}"
        if trace["state"] == "recording":
            yield f"[dim]worker {one['worker']} records a trace: {size}[/dim]"
        else:
            yield f"[yellow]Worker {one['worker']} stopped recording its trace: {trace['state']}.[/yellow] {size}"


def workers_table(answer: Answer) -> Any:
    """A row per worker: its level, the cluster's level that it applies, and its cause."""
    numbers = ("worker", "level", "cluster", "credits", "throttled", "CONNECTs")
    table = table_of(*numbers, "cause", right=numbers)
    for one in answer["workers"]:
        state = one.get("overload")
        if state is None:
            table.add_row(str(one["worker"]), *[""] * 5, f"{one['state']}, no answer")
            continue
        level = math.ceil(state["level"])
        table.add_row(
            str(one["worker"]),
            f"[{color(level)}]{state['level']:.1f}[/{color(level)}]",
            f"{state['cluster']['level']:.1f}",
            short_credits(state["credits"]["per_tick"]),
            str(sum(each["clients"] for each in state["held"].values())),
            str(state["connects"]["waiting"]),
            _cause(state["cause"], state["worst"]),
        )
    return table


def held_table(answer: Answer) -> Any:
    """Throttled clients by reason, with their total time. None if no client was throttled for a minute."""
    sums: dict[str, dict[str, int]] = {}
    for state in answering(answer):
        for reason, figures in state["held"].items():
            before = sums.get(reason, {})
            sums[reason] = {name: figure + before.get(name, 0) for name, figure in figures.items()}
    if not sums:
        return None
    numbers = ("clients", "time in the last second", "in the last minute")
    table = table_of("throttled for", *numbers, right=numbers)
    for reason, figures in sorted(sums.items()):
        times = (seconds(figures["interval_ms"] / 1e3), seconds(figures["minute_ms"] / 1e3))
        table.add_row(reason, str(figures["clients"]), *times)
    return table


def signals_table(answer: Answer) -> tuple[Any, int]:
    """The signals above QUIET, the worst first (None if there are none), and the number of the others."""
    rows = [
        (one["worker"], signal) for one in answer["workers"] for signal in one.get("overload", {}).get("signals", [])
    ]
    shown = [(worker, signal) for worker, signal in rows if _notable(signal)]
    if not shown:
        return None, len(rows)
    table = table_of("signal", "worker", "targets", "contended", "", right=("worker", "targets"))
    for worker, signal in sorted(shown, key=_worst_first):
        since = signal["contended_s"]
        resource = visible(signal["resource"]) or "connecting"
        injected = signal["injected_s"]
        table.add_row(
            visible(signal["name"]),
            str(worker),
            f"{signal['value']:.2f}",
            "" if since is None else f"[red]{resource}[/red] for {seconds(since)}",
            "" if injected is None else f"[magenta]injected[/magenta], {seconds(injected)} more",
        )
    return table, len(rows) - len(shown)


def others_table(answer: Answer) -> Any:
    """The workers of other nodes by their latest report to any worker here. None if there are none."""
    found: dict[tuple[str, int], Answer] = {}
    for state in answering(answer):
        for said in state["reports"]["heard"]:
            who = (said["node"], said["worker"])
            if said["node"] != answer["node"] and (who not in found or said["age_s"] < found[who]["age_s"]):
                found[who] = said
    if not found:
        return None
    numbers = ("worker", "level", "heard")
    table = table_of("other node", *numbers, "cause", "contended", right=numbers)
    for said in sorted(found.values(), key=_highest_first)[:OTHERS]:
        level = math.ceil(said["level"])
        cause = _cause(said["cause"] if said["level"] else "", said["value"])
        table.add_row(
            visible(said["node"]),
            str(said["worker"]),
            f"[{color(level)}]{said['level']:.1f}[/{color(level)}]",
            f"{seconds(said['age_s'])} ago",
            cause if said["counts"] else "[dim]too long ago to count[/dim]",
            visible(", ".join(said["contended"])),
        )
    if len(found) > OTHERS:
        table.add_row(f"and {len(found) - OTHERS} more")
    return table


def answering(answer: Answer) -> list[Answer]:
    """The snapshots of the workers that answered."""
    return [one["overload"] for one in answer["workers"] if "overload" in one]


def highest(answer: Answer) -> int:
    """The highest level in force on any worker, rounded up."""
    return max((math.ceil(max(one["cluster"]["level"], one["level"])) for one in answering(answer)), default=0)


def color(level: int) -> str:
    return "green" if level == 0 else "yellow" if level < 5 else "red"


def seconds(time: float) -> str:
    """*time* in seconds as text: 0, 0.12 s, 9.5 s, 95 s, 3m 10s."""
    if time <= 0.0:
        return "0"
    if time < 1.0:
        return f"{time:.2f} s"
    if time < 120.0:
        return f"{time:.3g} s"
    return f"{int(time) // 60}m {int(time) % 60}s"


def short_credits(credits: float) -> str:
    return f"{credits:.0f}"


def _idle(state: Answer) -> bool:
    """Whether a worker shows no sign of overload."""
    return bool(
        state["enabled"]
        and not state["level"]
        and not state["cluster"]["level"]
        and not state["connects"]["waiting"]
        and not any(one["clients"] for one in state["held"].values())
        and all(one["contended_s"] is None and one["injected_s"] is None for one in state["signals"])
    )


def _because(answer: Answer) -> str:
    """The signal that causes the highest level, as the end of a sentence."""
    found = answering(answer)
    worst = max((one["cluster"] for one in found), key=_level)
    if not worst["level"] or not worst["cause"]:
        return ""
    whose = f"worker {worst['worker']}"
    if worst["node"] != answer["node"]:
        whose += f" of {visible(worst['node'])}"
    return f", caused by {visible(worst['cause'])} of {whose} at {worst['value']:.2f} of its target"


def _cause(name: str, value: float) -> str:
    return f"{visible(name)} {value:.2f}" if name else ""


def _throttled(states: list[Answer]) -> str:
    """The number of throttled clients by reason."""
    clients: dict[str, int] = {}
    for state in states:
        for reason, figures in state["held"].items():
            clients[reason] = clients.get(reason, 0) + figures["clients"]
    return ", ".join(f"{counted(count, 'client')} for {reason}" for reason, count in clients.items() if count)


def _ignored(states: list[Answer]) -> str:
    counts: dict[str, int] = {}
    for state in states:
        for label, count in state["reports"]["ignored"].items():
            counts[label] = counts.get(label, 0) + count
    counts.pop("stale", None)  # each report arrives over the mesh and over Redis; the second copy is stale
    counts.pop("echo", None)
    answer = [f"{count} ignored as {label}" for label, count in counts.items()]
    lost = sum(state["reports"]["lost_redis"] for state in states)
    return ", ".join([*answer, *([f"{lost} not accepted by Redis"] if lost else [])])


def _notable(signal: Answer) -> bool:
    return bool(signal["value"] >= QUIET or signal["contended_s"] is not None or signal["injected_s"] is not None)


def _per_tick(credits: Answer) -> float:
    return float(credits["per_tick"])


def _level(cluster: Answer) -> float:
    return float(cluster["level"])


def _worst_first(row: tuple[int, Answer]) -> tuple[float, int, str]:
    worker, signal = row
    return -signal["value"], worker, signal["name"]


def _highest_first(said: Answer) -> tuple[bool, float, str, int]:
    """Reports that still count first, then by level."""
    return not said["counts"], -said["level"], said["node"], said["worker"]
