# Commands for running nodes: stop, restart, reload, status, nodes, logs.
#
# A command imports what it needs inside its function, so that `weir --help` starts quickly.
from typing import Annotated, Any, Final

import typer

from cli.options import NOT_SO, AsJson, ConfigFile, Folder, Name, refuse
from cli.printing import console, counted, print_json, table_of

LATE: Final = 10.0  # seconds that a node may take to stop, beyond its drain timeout
REPLACING: Final = 60.0  # seconds that one worker may take to drain and restart
GROUPS: Final = 10  # of APPLICATION clients that share a log, in the status of a node


def stop(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Stop a node. Clients receive DISCONNECT 0x8B and have the drain timeout to leave.

    Exit code 1 if the node is not running.
    """
    from cli.control_client import ControlClient, chosen_node

    node = chosen_node(name, folder, config)
    control = ControlClient(node)
    answer = control.request("stop")
    control.wait_for_end(answer["drain"] + LATE)
    if as_json:
        return print_json({"node": node.name, "pid": answer["pid"]})
    typer.echo(f"The node {node.name} was stopped.")


def restart(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Restart the workers of a node one after another. Clients receive DISCONNECT 0x8B and reconnect."""
    from cli.control_client import ControlClient, chosen_node

    node = chosen_node(name, folder, config)
    answer = ControlClient(node, patience=REPLACING * 64).request("restart")
    if as_json:
        return print_json(answer)
    for one in answer["workers"]:
        lost = one["sessions_lost"]
        losses = f", {lost} session{'s' if lost != 1 else ''} lost (sessions are kept in memory)" if lost else ""
        typer.echo(f"Worker {one['worker']} was restarted in {one['seconds']:.1f} s (process {one['pid']}){losses}.")


def reload(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Make a node read its certificates, passwords and access rules again (as SIGHUP does)."""
    from cli.control_client import ControlClient, chosen_node

    node = chosen_node(name, folder, config)
    ControlClient(node, patience=REPLACING).request("reload")
    if as_json:
        return print_json({"node": node.name})
    typer.echo(f"The node {node.name} has reloaded its files.")


def status(name: Name = None, folder: Folder = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show a node and its workers. Exit code 1 if it is not running."""
    from cli.applications import shared_logs
    from cli.control_client import ControlClient, chosen_node

    node = chosen_node(name, folder, config)
    answer = ControlClient(node).request("status")
    if as_json:
        return print_json(answer)
    shared, why = shared_logs(node, GROUPS) if answer.get("carrier") else (None, "")
    show_status(answer, shared, why)


def list_nodes(as_json: AsJson = False) -> None:
    """List the nodes of this machine whose folders are in the default place, and those that share their Redis."""
    from supervisor.folder import folders

    found = [_outline(node) for node in folders()]
    if as_json:
        return print_json(found)
    if not found:
        typer.echo("There is no node on this machine. `weir start --detach` starts one.")
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
    for server, nodes in {one["redis"]: one["shared_with"] for one in found if one["redis"]}.items():
        console().print(f"\nNodes that share {server}:", highlight=False)
        console().print(_sharing_table(nodes))


def logs(
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing what is appended.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="Start with the last N lines.")] = 50,
) -> None:
    """Print the log of a node that was started with --detach, even after it has stopped."""
    from cli.control_client import chosen_node
    from cli.tail import NoFile, tail

    node = chosen_node(name, folder, config)
    try:
        for line in tail(node.log, lines, follow):
            typer.echo(line, nl=False)
    except NoFile:
        refuse(
            f"The node {node.name} has no log file {node.log}. A node in the foreground logs to its terminal.", NOT_SO
        )
    except PermissionError:
        refuse(f"No permission to read {node.log}. Only its owner and root may read it.")
    except KeyboardInterrupt:
        raise typer.Exit from None


def show_status(answer: dict[str, Any], shared: dict[str, Any] | None = None, why: str = "") -> None:
    """Print the status of a node as text. *shared*: its shared logs; None: *why* they are not known."""
    import time

    screen = console()
    gauges = answer["totals"]["gauges"]
    screen.print(
        f"[bold]{answer['node']}[/bold]  {_colored(answer['state'])}  for {duration(time.time() - answer['began'])}"
        f"  process {answer['pid']}  weir {answer['version']} ({answer['form']})"
    )
    screen.print(f"listens on  {addresses(answer['listeners'])}", highlight=False)
    screen.print(f"folder      {answer['folder']}", highlight=False)
    screen.print(
        f"{counted(gauges.get('connected', 0), 'client')} connected, {counted(gauges.get('sessions', 0), 'session')}, "
        f"{counted(gauges.get('subscriptions', 0), 'subscription')}, "
        f"{counted(gauges.get('retained', 0), 'retained message')} ({short(gauges.get('retained_bytes', 0))}B)"
    )
    if gauges.get("store_fill"):
        screen.print(f"Redis uses {100 * gauges['store_fill']:.0f} % of its maxmemory")
    for line in drain_lines(answer.get("drain")):
        screen.print(line, highlight=False, markup=False)
    for line in cluster_lines(answer.get("cluster")):
        screen.print(line, highlight=False, markup=False)
    if answer.get("carrier"):
        for line in carrier_lines(answer["carrier"]):
            screen.print(line, highlight=False)
        for line in log_lines(answer["workers"]):
            screen.print(line, highlight=False, markup=False)
        for line in shared_lines(shared, why):
            screen.print(line, highlight=False, markup=False)
        for line in backbone_lines(answer["workers"], gauges):
            screen.print(line, highlight=False, markup=False)
    numbers = ("pid", "up", "clients", "in", "out", "CPU", "memory", "deaths")
    table = table_of("worker", "state", *numbers, right=("worker", *numbers))
    for one in answer["workers"]:
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


def cluster_lines(cluster: dict[str, Any] | None) -> list[str]:
    """The nodes that are one broker with a node, and those that share its Redis and are not; None: nobody can."""
    if cluster is None:
        return []
    joined, workers = cluster["nodes"], cluster["workers"]
    others = f"with {', '.join(joined)} ({counted(len(workers), 'worker')})" if joined else "no other node runs"
    lines = [f"cluster     {others}, by {cluster['redis']}"]
    if cluster["missing"]:
        lines.append(f"            {counted(cluster['missing'], 'worker')} of these nodes cannot be reached yet")
    lines += [f"            {name} is not joined: {why}" for name, why in cluster["apart"].items()]
    for dead in cluster["dead"]:
        stored = counted(dead["stored_at_workers"], "worker")
        left = f", and has left the durable sessions of {stored}" if dead["stored_at_workers"] else ""
        lines.append(f"            {dead['node']} does not run any more{left}")
    return lines


def drain_lines(drain: dict[str, Any] | None) -> list[str]:
    """How far a node is with sending its clients away; None: it takes clients."""
    if drain is None:
        return []
    from broker.overload.level import HIGHEST

    left = f"{counted(drain['clients'], 'client')} and {counted(drain['sessions'], 'session')} left"
    if drain["level"] is None:
        return [f"drained     {left}; they stay, as no other node takes clients"]
    others = f"are at level {drain['level']:.1f}" if drain["level"] < HIGHEST else "are at the highest level, or silent"
    pace = f"at most {drain['clients_per_second']:g} a second, as the others {others}"
    return [f"drained     {left}, {pace}"]


def carrier_lines(carrier: dict[str, Any]) -> list[str]:
    """The carrier of a node, and its log."""
    from rich.markup import escape

    log = f"Kafka at {', '.join(carrier['hosts'])}" if carrier["hosts"] else "streams of Redis"
    facts = f"process {carrier['pid']}, up {duration(carrier['uptime'])}, {counted(carrier['deaths'], 'death')}"
    lines = [f"carrier     {_colored(carrier['state'])}, {facts}; its log: {log}"]
    report = carrier["report"]
    if report.get("waiting_packs"):
        waiting = counted(report["waiting_packs"], "pack")
        lines.append(f"            {waiting} ({short(report['waiting_bytes'])}B) wait for it")
    if report.get("unusable"):
        lines.append(f"            the log cannot be used: {escape(report['unusable'])}")
    lines += [
        f"            nothing can be appended to {topic}/{number}: {escape(why)}"
        for topic, number, why in report.get("failing", [])
    ]
    if report.get("metrics_trouble"):
        lines.append(f"            no metrics records are published to it: {report['metrics_trouble']}")
    if report.get("offsets_trouble"):
        lines.append(f"            its tools do not see how far services are: {escape(report['offsets_trouble'])}")
    return lines


def log_lines(workers: list[dict[str, Any]]) -> list[str]:
    """The logs of APPLICATION clients of *workers* that cannot be made, found or read."""
    lines: list[str] = []
    for one in workers:
        logs = (one.get("statistics") or {}).get("logs", {"failing": 0, "named": []})
        lines += [f"            {topic} cannot be used: {why}" for topic, why in logs["named"]]
        if logs["failing"] > len(logs["named"]):
            more = logs["failing"] - len(logs["named"])
            lines.append(f"            {counted(more, 'more log')} of worker {one['worker']} cannot be used")
    return lines


def shared_lines(shared: dict[str, Any] | None, why: str) -> list[str]:
    """The logs that APPLICATION clients share, and the groups that read them."""
    from cli.applications import group_line, shared_name
    from cli.clients import printable

    if shared is None:
        return [f"            shared logs are not known: {why}"] if why else []
    lines = [f"shared log  {printable(shared_name(one))}: {group_line(one)}" for one in shared["shared"]]
    return [*lines, "            and others: `weir applications list` has all"] if shared["more"] else lines


def backbone_lines(workers: list[dict[str, Any]], gauges: dict[str, Any]) -> list[str]:
    """The inbound backbone of a node, if it has one: how far its *workers* are behind, and what is wrong with it."""
    told = [report["backbone"] for one in workers if "backbone" in (report := one.get("statistics") or {})]
    if not told:
        return []
    lag, behind = gauges.get("backbone_lag_ms", 0.0) / 1000, gauges.get("backbone_behind", 0)
    waits = f"the oldest publish has waited for {lag:.1f} s" if lag else "no publish waits to be dispatched"
    lines = [f"backbone    {waits}; {counted(behind, 'record')} not done"]
    troubles = {each["trouble"] for each in told if each["trouble"]}
    unread = {each["unread"] for each in told if each["unread"]}
    lines += [f"            nothing is accepted: {why}" for why in sorted(troubles)]
    return lines + [f"            {why}" for why in sorted(unread)]


def duration(seconds: float) -> str:
    """*seconds* in its largest whole unit and the next smaller one, such as 2h5m."""
    whole = int(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length}{unit} {whole % length // part}{smaller}"
    return f"{whole}s"


def short(number: int) -> str:
    """*number* with three significant digits and a letter for thousands, such as 1.25M."""
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
    """The facts for one line of `weir nodes`. A node that does not answer has those that its folder shows."""
    from cli.control_client import ControlClient

    facts: dict[str, Any] = {"node": node.name, "state": "stopped", "pid": None, "workers": None, "clients": None}
    facts |= {"listeners": [], "folder": str(node.path), "redis": None, "shared_with": []}
    try:
        if node.running() is None:
            return facts
        answer = ControlClient(node).request("status")
        sharing = ControlClient(node).request("nodes")
    except (OSError, typer.Exit):
        return {**facts, "state": "no answer"}
    return {
        **facts,
        "state": answer["state"],
        "pid": answer["pid"],
        "workers": len(answer["workers"]),
        "clients": answer["totals"]["gauges"].get("connected", 0),
        "listeners": answer["listeners"],
        "redis": sharing["redis"],
        "shared_with": sharing["nodes"],
    }


def _sharing_table(nodes: list[dict[str, Any]]) -> Any:
    import time

    from rich.markup import escape

    table = table_of("node", "lease", "host", "version", "workers", "runs for", "cluster", right=("workers",))
    for one in nodes:
        runs = one["left"] > 0
        table.add_row(
            one["node"],
            f"{one['left']:.0f} s" if runs else "[red]has run out[/red]",
            *(str(one[key]) for key in ("host", "version", "workers")),
            duration(time.time() - one["began"]) if runs and isinstance(one["began"], (int, float)) else "",
            _place(one) if one["joined"] else f"[red]{escape(one['why_apart'])}[/red]",
        )
    return table


def _place(one: dict[str, Any]) -> str:
    return f"joined, [yellow]{one['drain']}[/yellow]" if one["drain"] else "joined"


def _colored(state: str) -> str:
    color = {"serving": "green", "degraded": "red", "dead": "red"}.get(state, "yellow")
    return f"[{color}]{state}[/{color}]"
