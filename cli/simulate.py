# `weir simulate`: evaluates overload policies on recorded traces (analytics/backtest/).
#
# Pairs of a trace and a policy are played in a pool of processes if there are more than two, or on the Spark cluster of
# --master. Otherwise this process plays them one after another, with the same result.
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import NOT_SO, AsJson, ConfigFile, Folder, refuse
from cli.overload import NodeName
from cli.printing import console, print_json

if TYPE_CHECKING:
    from analytics.backtest.policy import Policy
    from analytics.backtest.run import Answer, Backtest, Task


def simulate(
    policy: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="TOML file with the [overload] settings to try. Repeatable."),
    ],
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only the last TIME of the traces, such as 1h.")
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Trace to play (default: the traces of the node). Repeatable."),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Run in this process, one trace after another.")] = False,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Run on this Spark master (the traces must be in a shared folder)."),
    ] = None,
    node: NodeName = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate overload policies on recorded traffic: clients throttled and publishes lost under each of them.

    A policy changes the settings that it names; other settings stay as recorded. The result is an estimate. Under the
    recorded policy, every decision is repeated exactly.
    """
    from analytics.backtest.run import backtest
    from cli.simulate_view import facts, screen

    begin = 0.0 if since is None else time.time() - _seconds(since)
    policies = [_read(file) for file in policy]
    _use_distinct_names(policies, policy)
    files = trace or _recorded(node, folder, config)
    run, stop = _runner(len(files) * (len(policies) + 1), local, master)
    try:
        found = backtest(files, policies, begin, run)
    except BrokenProcessPool:
        refuse("a process that played a trace was killed, perhaps for lack of memory: --local plays one at a time.")
    finally:
        stop()
    _check_result(found, since)
    if as_json:
        return print_json(facts(found, policies))
    shown = console()
    for part in screen(found, policies):
        shown.print(part)


def _seconds(text: str) -> float:
    from broker.config.fields import YEAR
    from broker.config.values import Duration

    try:
        return Duration(0.001, 100 * YEAR).take(text)
    except ValueError as error:
        refuse(f"--since {text} is not valid: it must be {error}.")


def _read(file: Path) -> "Policy":
    from analytics.backtest.policy import read_policy
    from broker.config.schema import ConfigError

    try:
        return read_policy(file)
    except ConfigError as error:
        refuse(str(error))


def _use_distinct_names(policies: "list[Policy]", files: list[Path]) -> None:
    """Replace the names of policies that have equal names by their paths."""
    from dataclasses import replace

    names = [one.name for one in policies]
    for position, file in enumerate(files):
        if names.count(names[position]) > 1:
            policies[position] = replace(policies[position], name=str(file))


def _recorded(node: str | None, folder: str | None, config: Path | None) -> list[Path]:

    from cli.control_client import chosen_node

    where = chosen_node(node, folder, config)
    place = where.path / "trace"
    try:
        files = sorted(place.glob("*.trace"))
    except OSError:
        files = []
    if not files:
        refuse(
            f"The node {where.name} has no traces in {place}: "
            "`weir start --set overload.trace=256MiB` starts the node with a trace for each worker.",
            NOT_SO,
        )
    return files


def _runner(
    pairs: int, local: bool, master: str | None
) -> "tuple[Callable[[list[Task]], list[Answer]], Callable[[], None]]":
    """Return a function that plays pairs, and one that stops it. Exit if *master* is given and Spark cannot run."""
    from analytics.backtest.run import in_processes, on_spark, run_locally

    if master is None:
        return (run_locally if local or pairs <= 2 else in_processes), _nothing
    if problem := _spark_problem():
        refuse(problem)
    from analytics.spark import session

    spark = session(master)
    return on_spark(spark), spark.stop


def _spark_problem() -> str:
    from cli.analytics import MODULES, NEEDS, java

    if not all(find_spec(name) for name in MODULES):
        return f"PySpark is not installed: `pip install {NEEDS[0]}` installs it; without --master it is not needed."
    return java()


def _nothing() -> None:
    pass


def _check_result(found: "Backtest", since: str | None) -> None:
    for problem in found.problems if found.traces else found.problems[1:]:
        typer.echo(f"weir: {problem}", err=True)
    if not found.traces or any(one.outcome.seconds < found.recorded.seconds for one in found.policies):
        refuse(found.problems[0])  # for example, a policy that contradicts the settings of one of the traces
    if not found.recorded.seconds:
        refuse(f"The traces have no records of the last {since}." if since else "The traces are empty.", NOT_SO)
