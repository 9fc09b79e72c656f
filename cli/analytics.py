# `weir analytics run`: finds the Redis and the Kafka of a node, checks that Spark can run, and executes the job
# (analytics/job.py).
#
# The job replaces this process (exec), so that signals, exit code and output are those of the job.
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.options import NOT_SO, Assignments, ConfigFile, Folder, Name, refuse

if TYPE_CHECKING:
    from analytics.connector import KafkaAddress
    from broker.config.schema import Kafka

# The extra `analytics` of pyproject.toml.
NEEDS: Final = ("pyspark>=4.2,<4.3", "pandas>=2.2,<3", "pyarrow>=18", "msgspec>=0.19")
MODULES: Final = ("pyspark", "pandas", "pyarrow", "msgspec")
JAVA: Final = 17  # the oldest version that Spark 4 supports
JAVA_TIMEOUT: Final = 60.0  # seconds for `java -version`
GET_JAVA: Final = "install Java, for example the package openjdk-17-jre-headless, or set JAVA_HOME"

app = typer.Typer(help="The analysis of overload, on Spark.", no_args_is_help=True)


@app.callback()
def analytics() -> None:
    """The analysis of overload, on Spark."""


@app.command()
def run(
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark master, such as spark://HOST:7077 (default: this machine)."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint (default: in the folder of the node)."),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write all seconds to Parquet files in DIR.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--redis", metavar="URL", help="Redis (default: that of the local node)."),
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="HOSTS",
            help="Read the metrics records from this Kafka: HOST:PORT of some brokers, with commas; '' for the stream "
            "of Redis (default: as the node is configured).",
        ),
    ] = None,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install PySpark with pip if it is missing.")
    ] = True,
) -> None:
    """Analyse the overload of all nodes that share a Redis, until Ctrl-C.

    The analysis resumes from its checkpoint.
    """
    from analytics import connector
    from analytics.connecting import URL

    found = find_logs(url, kafka, name, folder, config, assignments)
    _check_java()
    _check_spark(install)
    environment = {**os.environ, URL: found.redis}
    if found.kafka is not None:
        try:
            connector.java_options(found.kafka)
            connector.jars()
        except connector.ConnectorUnusable as error:
            refuse(str(error))
        environment[connector.ADDRESS] = found.kafka.encode()
    # Where Spark was in one log says nothing of another one.
    checkpoint = checkpoint or found.place / ("checkpoint" if found.kafka is None else "checkpoint-kafka")
    command = [sys.executable, "-m", "analytics.job", "--prefix", found.prefix]
    command += ["--checkpoint", str(checkpoint.absolute())]
    if history is not None:
        command += ["--history", str(history.absolute())]
    if master is not None:
        command += ["--master", master]
    os.execve(sys.executable, command, environment)


@dataclass(frozen=True)
class FoundLogs:
    redis: str  # the address, for analytics/connecting.py
    prefix: str  # of the keys there
    kafka: "KafkaAddress | None"  # that has the metrics records; None: they are in Redis
    place: Path  # the folder of the analysis


def find_logs(
    url: str | None,
    kafka: str | None,
    name: str | None,
    folder: str | None,
    config: Path | None,
    assignments: list[str] | None = None,
) -> FoundLogs:
    """Return where the metrics records are, and the results of the analysis; exit if Redis is missing.

    Without an address of Redis, both are where the node of this machine has them, whatever it was started with.
    """
    from analytics.connecting import with_files
    from broker.config.schema import Kafka, Redis
    from broker.config.sources import Given
    from cli.control_client import ControlClient, chosen_node
    from cli.options import load_settings
    from supervisor.folder import base_folder
    from supervisor.redis_address import find_configured, find_redis, url_with_password
    from supervisor.redis_server import RedisUnusable

    options = [Given("redis.url", url, "--redis")] if url is not None else []
    if kafka:
        options.append(Given("kafka.hosts", kafka, "--kafka"))
    if name is not None:
        options.append(Given("node.name", name, "--name"))
    if folder is not None:
        options.append(Given("node.folder", folder, "--folder"))
    settings = load_settings(config, assignments, options).config
    redis, brokers, place = settings.redis, settings.kafka, base_folder() / "analytics" / settings.redis.prefix
    if not redis.url:
        node = chosen_node(name, settings.node.folder or None, config)
        with closing(ControlClient(node)) as control:
            answer = control.request("analysis")  # exits with instructions if the node is not running
        redis, place = Redis(**answer["redis"]), node.path / "analytics"
        if not kafka:
            given = answer["kafka"]
            brokers = Kafka(
                hosts=tuple(given["hosts"]),
                options=tuple(given["options"].items()),
                password_file=given["password_file"],
            )
    found_kafka = _kafka_address(brokers) if brokers.hosts and kafka != "" else None
    if redis.url:
        try:
            whole = url_with_password(redis.url, redis.password_file)
            found = find_configured(redis)
        except RedisUnusable as error:
            refuse(str(error))
        address = with_files(whole, found.address.ca, redis.password_file, redis.sentinel_password_file)
        return FoundLogs(address, redis.prefix, found_kafka, place)
    address = f"unix://{node.path / 'redis' / 'redis.sock'}"
    try:
        find_redis(address)
    except RedisUnusable as error:
        refuse(f"The embedded Redis of the node {node.name} is not ready: {error}", NOT_SO)
    return FoundLogs(address, redis.prefix, found_kafka, place)


def _kafka_address(kafka: "Kafka") -> "KafkaAddress":
    from analytics.connector import KafkaAddress

    password = ""
    if kafka.password_file:
        try:
            password = Path(kafka.password_file).read_text().strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            refuse(f"cannot read kafka.password_file = {kafka.password_file}: {why}.")
    return KafkaAddress(hosts=kafka.hosts, options=dict(kafka.options), password=password)


def java() -> str:
    """Return why there is no Java for Spark; "" if there is one."""
    home = os.environ.get("JAVA_HOME")
    binary = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if binary is None or not os.access(binary, os.X_OK):
        where = f"JAVA_HOME ({home}) has no java" if home else "there is no java on PATH"
        return f"The analysis needs Java {JAVA} or newer, but {where}: {GET_JAVA}."
    try:
        result = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT, check=False)
        output = result.stderr + result.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        output = str(error)
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if found is None:
        return f"The version of {binary} is unknown; the analysis needs Java {JAVA} or newer: {GET_JAVA}."
    if int(found[1]) < JAVA:
        return f"The analysis needs Java {JAVA} or newer, but {binary} is Java {found[1]}: {GET_JAVA}."
    return ""


def _check_java() -> None:
    problem = java()
    if problem:
        refuse(problem)


def _check_spark(install: bool) -> None:
    """Install PySpark with pip if it is missing, or exit."""
    if all(find_spec(name) for name in MODULES):
        return
    by_hand = f"{sys.executable} -m pip install {' '.join(repr(need) for need in NEEDS)}"
    if not install:
        refuse(f"The analysis needs PySpark, which is not installed: `{by_hand}` installs it.")
    typer.echo("weir: Installing PySpark (about 400 MB, only once).", err=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *NEEDS]
    if subprocess.run(command, check=False).returncode != 0:
        refuse(f"PySpark could not be installed for the reason above: `{by_hand}` tries again.")
