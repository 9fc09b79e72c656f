# What `weir overload` prints: lines and tables made of what a node reports (broker/insight/overload_snapshot.py).
#
# Whoever opens it in the middle of trouble wants three answers first: how bad, because of what, and who pays. So these
# are sentences. The tables below them hold what the sentences rest on.
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cli.clients import visible
from cli.nodes import short
from cli.printing import counted, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

QUIET: Final = 0.05  # targets; signals below are told of by their number
LEVELS: Final = 10
OTHERS: Final = 20  # workers of other nodes that are shown

Told = dict[str, Any]


def calm(told: Told) -> str:
    """The one sentence that is to be said when there is nothing to see; "" if there is."""
    workers = told["workers"]
    if any("overload" not in one or not _idle(one["overload"]) for one in workers):
        return ""
    nodes = {said["node"] for one in workers for said in one["overload"]["reports"]["heard"] if said["counts"]}
    others = len(nodes - {told["node"]})
    who = f"{told['node']} and {counted(others, 'other node')} are" if others else f"{told['node']} is"
    return f"All is calm: {who} at level 0, and nobody is held back."


def line(told: Told) -> str:
    """All of it on one line, for a log of many of them."""
    sentence = calm(told)
    if sentence:
        return sentence
    found = answering(told)
    if not found:
        return f"{told['node']}: no worker answers"
    parts = [f"{told['node']} level {highest(told)}{_because(told)}"]
    parts.append(f"credits {short_credits(min(one['credits']['per_tick'] for one in found))}")
    parts.append(f"held {_held(found) or 'nobody'}")
    waiting = sum(one["connects"]["waiting"] for one in found)
    parts.append(f"CONNECTs waiting {waiting}")
    if any(signal["injected_s"] is not None for one in found for signal in one["signals"]):
        parts.append("signals are injected")
    return "  ".join(parts)


def screen(told: Told) -> "list[RenderableType]":
    """All of it, from the most important downwards."""
    from rich.text import Text

    sentence = calm(told)
    recorded = [Text.from_markup(one) for one in traces(told)]
    if sentence:
        return [Text(sentence), *recorded]
    parts: list[RenderableType] = [Text.from_markup(one) for one in sentences(told)]
    parts += recorded
    parts += [Text(), workers_table(told)]
    held = held_table(told)
    if held is not None:
        parts += [Text(), held]
    signals, left_out = signals_table(told)
    if signals is not None:
        parts += [Text(), signals]
    if left_out:
        parts.append(Text(f"{counted(left_out, 'more signal')} below {QUIET:g} of the target", style="dim"))
    others = others_table(told)
    if others is not None:
        parts += [Text(), others]
    return parts


def sentences(told: Told) -> Iterator[str]:
    """How bad, because of what, and who pays."""
    found = answering(told)
    for one in told["workers"]:
        if "error" in one:
            yield f"[red]{one['error']}[/red]"
        elif "overload" not in one:
            yield f"[red]Worker {one['worker']} is {one['state']}.[/red]"
    if not found:
        return
    if not found[0]["enabled"]:
        yield "[yellow]Overload protection is off[/yellow] (overload.enabled = false): nobody is slowed down by it."
    level = highest(told)
    yield f"[bold]{told['node']}[/bold]  [{color(level)}]level {level} of {LEVELS}[/{color(level)}]{_because(told)}"
    credits = min((one["credits"] for one in found), key=_per_tick)
    if level:
        yield (
            f"each client is granted {short_credits(credits['per_tick'])} credits every {credits['tick_s'] * 1e3:.0f} "
            f"ms, of {credits['when_calm']} when calm"
        )
    held = _held(found)
    if held:
        yield f"held back: {held}"
    waiting = sum(one["connects"]["waiting"] for one in found)
    if waiting:
        oldest = max(one["connects"]["oldest_s"] for one in found)
        yield f"{counted(waiting, 'CONNECT')} waiting, the oldest for {seconds(oldest)}"
    ignored = _ignored(found)
    if ignored:
        yield f"[dim]reports of others since the start: {ignored}[/dim]"


def traces(told: Told) -> Iterator[str]:
    """What is recorded of the decisions, and whether it still is."""
    for one in told["workers"]:
        trace = one["overload"]["trace"] if "overload" in one else None
        if trace is None:
            continue
        size = f"{short(trace['bytes'])}B of {short(trace['limit_bytes'])}B in {visible(trace['file'])}"
        if trace["state"] == "recording":
            yield f"[dim]worker {one['worker']} records its decisions: {size}[/dim]"
        else:
            yield f"[yellow]Worker {one['worker']} records no more, as {trace['state']}:[/yellow] {size}"


def workers_table(told: Told) -> Any:
    """What each worker is at, and what it goes by."""
    numbers = ("worker", "level", "sees", "credits", "held", "CONNECTs")
    table = table_of(*numbers, "cause", right=numbers)
    for one in told["workers"]:
        state = one.get("overload")
        if state is None:
            table.add_row(str(one["worker"]), *[""] * 5, f"{one['state']}, and does not answer")
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


def held_table(told: Told) -> Any:
    """Who is or was held back, by reason, and for how long all of them together; None: nobody for a minute."""
    sums: dict[str, dict[str, int]] = {}
    for state in answering(told):
        for reason, figures in state["held"].items():
            before = sums.get(reason, {})
            sums[reason] = {name: figure + before.get(name, 0) for name, figure in figures.items()}
    if not sums:
        return None
    numbers = ("clients", "time in the last second", "in the last minute")
    table = table_of("held back for", *numbers, right=numbers)
    for reason, figures in sorted(sums.items()):
        times = (seconds(figures["interval_ms"] / 1e3), seconds(figures["minute_ms"] / 1e3))
        table.add_row(reason, str(figures["clients"]), *times)
    return table


def signals_table(told: Told) -> tuple[Any, int]:
    """The signals that say something, the worst first; None if none does. How many do not."""
    rows = [(one["worker"], signal) for one in told["workers"] for signal in one.get("overload", {}).get("signals", [])]
    shown = [(worker, signal) for worker, signal in rows if _speaks(signal)]
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


def others_table(told: Told) -> Any:
    """The workers of other nodes, as they were heard by whoever heard them last; None if there are none."""
    found: dict[tuple[str, int], Told] = {}
    for state in answering(told):
        for said in state["reports"]["heard"]:
            who = (said["node"], said["worker"])
            if said["node"] != told["node"] and (who not in found or said["age_s"] < found[who]["age_s"]):
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


def answering(told: Told) -> list[Told]:
    """What the workers said that answered."""
    return [one["overload"] for one in told["workers"] if "overload" in one]


def highest(told: Told) -> int:
    """The level that is in force where it is highest, as people see it."""
    return max((math.ceil(max(one["cluster"]["level"], one["level"])) for one in answering(told)), default=0)


def color(level: int) -> str:
    return "green" if level == 0 else "yellow" if level < 5 else "red"


def seconds(time: float) -> str:
    """Short, with what matters: 0, 0.12 s, 9.5 s, 95 s, 3m 10s."""
    if time <= 0.0:
        return "0"
    if time < 1.0:
        return f"{time:.2f} s"
    if time < 120.0:
        return f"{time:.3g} s"
    return f"{int(time) // 60}m {int(time) % 60}s"


def short_credits(credits: float) -> str:
    return f"{credits:.0f}"


def _idle(state: Told) -> bool:
    """Nothing of a worker is worth a look."""
    return bool(
        state["enabled"]
        and not state["level"]
        and not state["cluster"]["level"]
        and not state["connects"]["waiting"]
        and not any(one["clients"] for one in state["held"].values())
        and all(one["contended_s"] is None and one["injected_s"] is None for one in state["signals"])
    )


def _because(told: Told) -> str:
    """Whose signal is behind the highest level."""
    found = answering(told)
    worst = max((one["cluster"] for one in found), key=_level)
    if not worst["level"] or not worst["cause"]:
        return ""
    whose = f"worker {worst['worker']}"
    if worst["node"] != told["node"]:
        whose += f" of {visible(worst['node'])}"
    return f", as {visible(worst['cause'])} of {whose} is at {worst['value']:.2f} of its target"


def _cause(name: str, value: float) -> str:
    return f"{visible(name)} {value:.2f}" if name else ""


def _held(states: list[Told]) -> str:
    """Who is held back, by reason."""
    clients: dict[str, int] = {}
    for state in states:
        for reason, figures in state["held"].items():
            clients[reason] = clients.get(reason, 0) + figures["clients"]
    return ", ".join(f"{counted(count, 'client')} for {reason}" for reason, count in clients.items() if count)


def _ignored(states: list[Told]) -> str:
    counts: dict[str, int] = {}
    for state in states:
        for label, count in state["reports"]["ignored"].items():
            counts[label] = counts.get(label, 0) + count
    counts.pop("stale", None)  # each comes by two ways, and the second time it is no news
    counts.pop("echo", None)
    told = [f"{count} ignored as {label}" for label, count in counts.items()]
    lost = sum(state["reports"]["lost_redis"] for state in states)
    return ", ".join([*told, *([f"{lost} that Redis did not take"] if lost else [])])


def _speaks(signal: Told) -> bool:
    return bool(signal["value"] >= QUIET or signal["contended_s"] is not None or signal["injected_s"] is not None)


def _per_tick(credits: Told) -> float:
    return float(credits["per_tick"])


def _level(cluster: Told) -> float:
    return float(cluster["level"])


def _worst_first(row: tuple[int, Told]) -> tuple[float, int, str]:
    worker, signal = row
    return -signal["value"], worker, signal["name"]


def _highest_first(said: Told) -> tuple[bool, float, str, int]:
    """Those that count before those that do not."""
    return not said["counts"], -said["level"], said["node"], said["worker"]
