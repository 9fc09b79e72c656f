# `weir simulate`: another policy tried on what a node recorded of its overload (analytics/backtest/).
#
# On Spark when there is more than one pair of a trace and a policy, and Spark is here; else in this process: the same
# function plays the same traces, and only takes longer.
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import NOT_SO, AsJson, ConfigFile, Folder, refuse
from cli.overload import NodeName
from cli.printing import console, print_json

if TYPE_CHECKING:
    from analytics.backtest.policy import Policy
    from analytics.backtest.spreading import Answer, Backtest, Task


def simulate(
    policy: Annotated[
        list[Path], typer.Option(metavar="FILE", help="TOML with an [overload] table: the settings to try. Repeatable.")
    ],
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what happened within that time, such as 1h.")
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A trace, instead of those in the node's folder. Repeatable."),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="In this process alone, without Spark.")] = False,
    node: NodeName = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Try overload policies on recorded traffic: who would have been held back for how long, and what lost.

    A policy changes what it names, and the rest stays as it was recorded. What it makes is an estimate; under the
    policy that was in force everything is decided again as it was, to the last bit.
    """
    from analytics.backtest.spreading import backtest
    from cli.simulate_view import facts, screen

    begin = 0.0 if since is None else time.time() - _seconds(since)
    policies = [_read(file) for file in policy]
    _name_apart(policies, policy)
    files = trace or _recorded(node, folder, config)
    run, stop = _runner(len(files) * (len(policies) + 1), local)
    try:
        found = backtest(files, policies, begin, run)
    finally:
        stop()
    _see_that_something_was_played(found, since)
    if as_json:
        return print_json(facts(found, policies))
    shown = console()
    for part in screen(found, policies):
        shown.print(part)


def _seconds(text: str) -> float:
    from broker.config.schema import YEAR
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


def _name_apart(policies: "list[Policy]", files: list[Path]) -> None:
    """Policies of the same name are shown by their paths."""
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
            f"The node {where.name} has recorded no traces, in {place}: "
            "`weir start --set overload.trace=256MiB` has each worker record one from then on.",
            NOT_SO,
        )
    return files


def _runner(pairs: int, local: bool) -> "tuple[Callable[[list[Task]], list[Answer]], Callable[[], None]]":
    """How pairs are played, and what ends it; one line says why it is not on Spark."""
    from analytics.backtest.spreading import here, on_spark

    wrong = "" if local or pairs <= 2 else _why_no_spark()
    if wrong:
        typer.echo(f"weir: {wrong} The traces are played one after another instead.", err=True)
    if local or pairs <= 2 or wrong:
        return here, _nothing
    from analytics.spark import session

    spark = session()
    return on_spark(spark), spark.stop


def _why_no_spark() -> str:
    from cli.analytics import MODULES, NEEDS, java

    if not all(find_spec(name) for name in MODULES):
        return f"PySpark is not installed (`pip install {NEEDS[0]}` has traces played in parallel)."
    return java()


def _nothing() -> None:
    pass


def _see_that_something_was_played(found: "Backtest", since: str | None) -> None:
    for problem in found.problems if found.traces else found.problems[1:]:
        typer.echo(f"weir: {problem}", err=True)
    if not found.traces or any(one.outcome.seconds < found.recorded.seconds for one in found.policies):
        refuse(found.problems[0])  # also of a policy that cannot be, with the settings of one of the traces
    if not found.recorded.seconds:
        refuse(f"Nothing was recorded within the last {since}." if since else "There is nothing in the traces.", NOT_SO)
