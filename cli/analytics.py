# `weir analytics run`: finds the Redis of a node, checks that Spark can run, and executes the job (analytics/job.py).
#
# The job replaces this process (exec), so that signals, exit code and output are those of the job.
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlencode

import typer

from cli.options import NOT_SO, Assignments, ConfigFile, Folder, Name, refuse

if TYPE_CHECKING:
    from broker.config.schema import Config

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
    from analytics.connecting import URL

    address, prefix, place = find_log(url, name, folder, config, assignments)
    _check_java()
    _check_spark(install)
    checkpoint = (checkpoint or place / "checkpoint").absolute()
    command = [sys.executable, "-m", "analytics.job", "--prefix", prefix, "--checkpoint", str(checkpoint)]
    if history is not None:
        command += ["--history", str(history.absolute())]
    if master is not None:
        command += ["--master", master]
    os.execve(sys.executable, command, {**os.environ, URL: address})


def find_log(
    url: str | None, name: str | None, folder: str | None, config: Path | None, assignments: list[str] | None = None
) -> tuple[str, str, Path]:
    """Return the address of Redis, the prefix of its keys and the folder of the analysis; exit if Redis is missing."""
    from broker.config.sources import Given
    from cli.control_client import ControlClient, chosen_node
    from cli.options import load_settings
    from supervisor.folder import base_folder
    from supervisor.redis_address import find_redis
    from supervisor.redis_server import RedisUnusable

    options = [Given("redis.url", url, "--redis")] if url is not None else []
    if name is not None:
        options.append(Given("node.name", name, "--name"))
    if folder is not None:
        options.append(Given("node.folder", folder, "--folder"))
    settings: Config = load_settings(config, assignments, options).config
    if settings.redis.url:
        try:
            found = find_redis(settings.redis.url, settings.redis.ca)
        except RedisUnusable as error:
            refuse(str(error))
        # redis-py takes the authorities from the URL, also in the processes of Spark.
        trusted = f"?{urlencode({'ssl_ca_certs': found.address.ca})}" if found.address.ca else ""
        return settings.redis.url + trusted, settings.redis.prefix, base_folder() / "analytics" / settings.redis.prefix
    node = chosen_node(name, settings.node.folder or None, config)
    with closing(ControlClient(node)) as control:
        control.request("status")  # exits with instructions if the node is not running
    address = f"unix://{node.path / 'redis' / 'redis.sock'}"
    try:
        find_redis(address)
    except RedisUnusable:
        refuse(
            f"The node {node.name} has no embedded Redis, or the Redis is not ready yet: if the node was started with "
            "redis.url, give that URL with --redis.",
            NOT_SO,
        )
    return address, settings.redis.prefix, node.path / "analytics"


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
