# Commands about nodes that run: stop, restart, reload, status, nodes, logs.
#
# What a command needs is imported inside it, so that `weir --help` answers at once.
from typing import Annotated, Any, Final

import typer

from cli.options import NOT_SO, AsJson, ConfigFile, Folder, Name, refuse
from cli.printing import console, counted, print_json, table_of

LATE: Final = 10.0  # seconds more than the drain may take that a node has to end
REPLACING: Final = 60.0  # seconds that one worker may take to drain and to start


def stop(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """End a node: its clients are told, and have the drain time to leave. Exit code 1 if it does not run."""
    from cli.asking import Answers, chosen

    node = chosen(name, folder, config)
    answers = Answers(node)
    told = answers.ask("stop")
    answers.wait_for_end(told["drain"] + LATE)
    if as_json:
        return print_json({"node": node.name, "pid": told["pid"]})
    typer.echo(f"The node {node.name} has ended.")


def restart(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Replace a node's workers, one after another; their clients are told to come back (0x8B)."""
    from cli.asking import Answers, chosen

    node = chosen(name, folder, config)
    told = Answers(node, patience=REPLACING * 64).ask("restart")
    if as_json:
        return print_json(told)
    for one in told["workers"]:
        lost = one["sessions_lost"]
        of_them = f", {lost} session{'s' if lost != 1 else ''} lost (they are in memory for now)" if lost else ""
        typer.echo(f"Worker {one['worker']} was replaced in {one['seconds']:.1f} s (process {one['pid']}){of_them}.")


def reload(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Have a node read its certificates, passwords and access rules again, as SIGHUP does."""
    from cli.asking import Answers, chosen

    node = chosen(name, folder, config)
    Answers(node, patience=REPLACING).ask("reload")
    if as_json:
        return print_json({"node": node.name})
    typer.echo(f"The node {node.name} has read its files again.")


def status(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show a node and its workers. Exit code 1 if it does not run."""
    from cli.asking import Answers, chosen

    told = Answers(chosen(name, folder, config)).ask("status")
    if as_json:
        return print_json(told)
    show_status(told)


def list_nodes(as_json: AsJson = False) -> None:
    """List the nodes of this machine whose folders are in the usual place."""
    from supervisor.folder import folders

    found = [_outline(node) for node in folders()]
    if as_json:
        return print_json(found)
    if not found:
        typer.echo("There is no node here: `weir start --detach` starts one.")
        return
    table = table_of(
        "node", "state", "process", "workers", "clients", "listens on", right=("process", "workers", "clients")
    )
    for one in found:
        table.add_row(
            one["node"],
            one["state"],
            *("" if one[key] is None else str(one[key]) for key in ("pid", "workers", "clients")),
            addresses(one["listeners"]),
        )
    console().print(table)


def logs(
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="Begin with the last N lines.")] = 50,
) -> None:
    """Print the log of a node that was started with --detach; of one that has ended, too."""
    from cli.asking import chosen
    from cli.following import NoFile, tail

    node = chosen(name, folder, config)
    try:
        for line in tail(node.log, lines, follow):
            typer.echo(line, nl=False)
    except NoFile:
        refuse(
            f"The node {node.name} has no log in {node.log}: one in the foreground logs where it was started.", NOT_SO
        )
    except PermissionError:
        refuse(f"No permission to read {node.log}: only its owner and root may.")
    except KeyboardInterrupt:
        raise typer.Exit from None


def show_status(told: dict[str, Any]) -> None:
    """Print what a node tells of itself, for people."""
    import time

    screen = console()
    gauges = told["totals"]["gauges"]
    screen.print(
        f"[bold]{told['node']}[/bold]  {_colored(told['state'])}  for {duration(time.time() - told['began'])}"
        f"  process {told['pid']}  weir {told['version']} ({told['form']})"
    )
    screen.print(f"listens on  {addresses(told['listeners'])}", highlight=False)
    screen.print(f"folder      {told['folder']}", highlight=False)
    screen.print(
        f"{counted(gauges.get('connected', 0), 'client')} connected, {counted(gauges.get('sessions', 0), 'session')}, "
        f"{counted(gauges.get('subscriptions', 0), 'subscription')}, "
        f"{counted(gauges.get('retained', 0), 'retained message')}"
    )
    numbers = ("pid", "up", "clients", "in", "out", "CPU", "memory", "deaths")
    table = table_of("worker", "state", *numbers, right=("worker", *numbers))
    for one in told["workers"]:
        report = one.get("statistics") or {}
        counters, held = report.get("counters", {}), report.get("gauges", {})
        table.add_row(
            str(one["worker"]),
            _colored(one["state"]),
            str(one["pid"]),
            duration(one.get("uptime", 0.0)),
            short(held.get("connected", 0)),
            short(counters.get("publishes_received", 0)),
            short(counters.get("publishes_sent", 0)),
            duration(one.get("cpu_seconds", 0.0)),
            f"{short(held.get('resident_bytes', 0))}B",
            str(one["deaths"]),
        )
    screen.print(table)


def duration(seconds: float) -> str:
    """The largest unit that it fills, and the next one."""
    whole = int(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length}{unit} {whole % length // part}{smaller}"
    return f"{whole}s"


def short(number: int) -> str:
    """With three digits or so, and a letter for thousands."""
    if number < 10_000:
        return str(number)
    value = float(number)
    for letter in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g}{letter}"
        value /= 1000
    return f"{value:.0f}T"


def addresses(listeners: list[Any]) -> str:
    return ", ".join(
        f"{transport} {f'[{host}]' if ':' in host else host}:{port}" for transport, host, port in listeners
    )


def _outline(node: Any) -> dict[str, Any]:
    """One line of `weir nodes`: of a node that does not answer, what can be seen."""
    from cli.asking import Answers

    facts: dict[str, Any] = {"node": node.name, "state": "stopped", "pid": None, "workers": None, "clients": None}
    facts |= {"listeners": [], "folder": str(node.path)}
    try:
        if node.running() is None:
            return facts
        told = Answers(node).ask("status")
    except (OSError, typer.Exit):
        return {**facts, "state": "does not answer"}
    return {
        **facts,
        "state": told["state"],
        "pid": told["pid"],
        "workers": len(told["workers"]),
        "clients": told["totals"]["gauges"].get("connected", 0),
        "listeners": told["listeners"],
    }


def _colored(state: str) -> str:
    color = {"serving": "green", "degraded": "red", "dead": "red"}.get(state, "yellow")
    return f"[{color}]{state}[/{color}]"
