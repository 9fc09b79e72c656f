# The Spark session of the analysis: a small one, in this process' reach alone when the master is local.
import os
import shlex
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

LOCAL: Final = "local[2]"  # the batches are small: more threads would only wait for each other

SETTINGS: Final = {
    "spark.app.name": "weir analytics",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",  # of a second's rows; more tasks cost more than they save
    # A watermark that moved drops state with the next records; a batch of its own for it would be one more a second.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",  # files of the checkpoint; a restart needs the last two
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.ui.showConsoleProgress": "false",
}
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Planning recurses. And of Java's two compilers the second one takes a processor for minutes, over code that Spark
# makes anew: without it a batch is faster from the first one on, as most of its work is Python's (decoding.py).
JAVA: Final = "-Xss4m -XX:TieredStopAtLevel=1"


def session(master: str = LOCAL) -> SparkSession:
    """The session of this process, made if there is none."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    java = shlex.quote(f"{JAVA} {_quiet()}")
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--driver-java-options {java} pyspark-shell")
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK["spark.driver.host"])  # else it says which address it guesses
    builder = SparkSession.builder.master(master)
    for name, value in {**SETTINGS, **(LOOPBACK if is_local(master) else {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _quiet() -> str:
    """The option of Java that names our log4j2.properties; "" where it cannot be named."""
    path = str(Path(__file__).with_name("log4j2.properties"))
    return "" if any(one.isspace() for one in path) else f"-Dlog4j2.configurationFile={path}"


def is_local(master: str) -> bool:
    return master.startswith("local")
