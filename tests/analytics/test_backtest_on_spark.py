# A backtest in parallel.
from pathlib import Path
from typing import TYPE_CHECKING

from analytics.backtest.policy import read_policy
from analytics.backtest.run import backtest, on_spark, run_locally
from broker.config.schema import Quotas
from tests.backtest.test_backtest import AGGRESSOR, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_finds_what_one_process_finds(spark: "SparkSession", tmp_path: Path) -> None:
    """What is found would depend on where it was looked for."""
    record(tmp_path, AGGRESSOR, Quotas())
    (tmp_path / "off.toml").write_text("[overload]\nenabled = false\n")
    files = [tmp_path / "0", tmp_path / "1", tmp_path / "away"]
    policies = [read_policy(tmp_path / "off.toml")]

    assert backtest(files, policies, 0.0, run_locally) == backtest(files, policies, 0.0, on_spark(spark))
