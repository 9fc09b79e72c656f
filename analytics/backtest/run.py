# Plays many traces under several policies, each pair separately: in a pool of processes, on a Spark cluster, or in this
# process. On one machine Spark would take longer to start than most traces take to play, and needs Java.
#
# A task is a file, a policy and a time; its result is an outcome of bounded size, so no data is shuffled. Each executor
# reads the traces itself: in a cluster they must be in a shared folder.
import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analytics.backtest.outcome import Outcome, unpacked
from analytics.backtest.play import BadTrace, play
from analytics.backtest.policy import Policy
from broker.config.schema import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = tuple[str, Policy | None, float]  # trace, policy (None: the recorded one, estimated for comparison), since
Answer = dict[str, Any]


@dataclass
class Compared:
    """All traces under one policy."""

    name: str
    outcome: Outcome
    estimate: bool  # false: it is the recorded policy of every worker


@dataclass
class Backtest:
    traces: list[dict[str, Any]]  # the played traces: file, node, worker, decisions, different decisions
    recorded: Outcome
    checked: Outcome  # the estimate for the recorded policy
    policies: list[Compared]
    problems: list[str]  # sentences about traces that could not be played


def run_locally(tasks: list[Task]) -> list[Answer]:
    return [answer(task) for task in tasks]


def in_processes(tasks: list[Task]) -> list[Answer]:
    """Play *tasks* in as many processes as there are cores. Raises BrokenProcessPool if one of them is killed."""
    many = min(len(tasks), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if many < 2:
        return run_locally(tasks)
    with ProcessPoolExecutor(many, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(answer, tasks))


def on_spark(session: "SparkSession") -> Callable[[list[Task]], list[Answer]]:
    """Return a function that plays tasks in parallel."""

    def spread(tasks: list[Task]) -> list[Answer]:
        return session.sparkContext.parallelize(tasks, len(tasks)).map(answer).collect()

    return spread


def answer(task: Task) -> Answer:
    """Play one trace under one policy; the result has the outcome, or a sentence that says why there is none."""
    file, policy, since = task
    try:
        played = play(Path(file), policy, since, check=policy is None)
    except (BadTrace, ConfigError) as error:
        return {"file": file, "problem": str(error)}
    return {
        "file": file,
        "node": played.about.node,
        "worker": played.about.worker,
        "decisions": played.decisions,
        "different": played.different,
        "same": played.same,
        "recorded": played.recorded.packed(),
        "estimate": None if played.estimate is None else played.estimate.packed(),
    }


def backtest(
    files: Iterable[Path], policies: list[Policy], since: float, run: Callable[[list[Task]], list[Answer]]
) -> Backtest:
    """Play every trace under every policy with *run*, and sum the outcomes."""
    wanted: list[Policy | None] = [None, *policies]
    tasks: list[Task] = [(str(file), policy, since) for file in files for policy in wanted]
    answers = run(tasks)
    by_policy = [answers[position :: len(wanted)] for position in range(len(wanted))]
    problems = list(dict.fromkeys(one["problem"] for one in answers if "problem" in one))
    found = Backtest([], Outcome(), Outcome(), [], problems)
    for one in by_policy[0]:
        if "problem" in one:
            continue
        found.traces.append({key: one[key] for key in ("file", "node", "worker", "decisions", "different")})
        found.recorded.add(unpacked(one["recorded"]))
        found.checked.add(unpacked(one["estimate"]))
    for policy, results in zip(policies, by_policy[1:], strict=True):
        compared = Compared(policy.name, Outcome(), False)
        for one in results:
            if "problem" in one:
                continue
            compared.outcome.add(unpacked(one["recorded"] if one["same"] else one["estimate"]))
            compared.estimate = compared.estimate or not one["same"]
        found.policies.append(compared)
    return found
