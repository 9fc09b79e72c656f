# The Spark session of the analysis: a small one, which listens on loopback only if the master is local.
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

LOCAL: Final = "local[2]"  # the batches are small: more threads would only wait for each other

SETTINGS: Final = {
    "spark.app.name": "weir analytics",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",  # a batch has the rows of one second; more tasks cost more than they save
    # Expired state is dropped with the next records; a separate batch for it would double the batches per second.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",  # batches in the checkpoint; a restart needs the last two
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.ui.showConsoleProgress": "false",
}
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Query planning recurses, so the stack is larger. The second tier of Java's compiler occupies a core for minutes with
# code that Spark keeps regenerating; without it every batch is faster, as most of the work is done by Python
# (decoding.py).
JAVA: Final = "-Xss4m -XX:TieredStopAtLevel=1"


def session(master: str = LOCAL, jars: Sequence[Path] = ()) -> SparkSession:
    """Return the session of this process; create it, with *jars*, if necessary."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    java = shlex.quote(f"{JAVA} {_quiet()}")
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--driver-java-options {java} pyspark-shell")
    if is_local(master):
        os.environ.setdefault(
            "SPARK_LOCAL_IP", LOOPBACK["spark.driver.host"]
        )  # otherwise Spark logs the address that it guesses
    builder = SparkSession.builder.master(master)
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for name, value in {**SETTINGS, **(LOOPBACK if is_local(master) else {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _quiet() -> str:
    """Return the Java option for our log4j2.properties; "" if the path has whitespace, which Java cannot parse."""
    path = str(Path(__file__).with_name("log4j2.properties"))
    return "" if any(one.isspace() for one in path) else f"-Dlog4j2.configurationFile={path}"


def is_local(master: str) -> bool:
    return master.startswith("local")
