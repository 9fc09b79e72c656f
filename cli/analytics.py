# `weir analytics run`: finds the Redis of a node, sees that Spark can run here, and becomes the job (analytics/job.py).
#
# It becomes it (exec), so that signals, the exit code and what is printed are the job's own.
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.options import NOT_SO, Assignments, ConfigFile, Folder, Name, refuse

if TYPE_CHECKING:
    from broker.config.schema import Config

# The extra `analytics` of pyproject.toml.
NEEDS: Final = ("pyspark>=4.2,<4.3", "pandas>=2.2,<3", "pyarrow>=18", "msgspec>=0.19")
MODULES: Final = ("pyspark", "pandas", "pyarrow", "msgspec")
JAVA: Final = 17  # and newer: what Spark 4 runs on
JAVA_PATIENCE: Final = 60.0  # seconds to say its version
GET_JAVA: Final = "install one, such as the package openjdk-17-jre-headless, or point JAVA_HOME at one"

app = typer.Typer(help="The analysis of overload, on Spark.", no_args_is_help=True)


@app.callback()
def analytics() -> None:
    """The analysis of overload, on Spark."""


@app.command()
def run(
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Of Spark, such as spark://HOST:7077. Default: this machine.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the analysis keeps its place. Default: the node's folder.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep each second there, too, as files of Parquet.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--redis", metavar="URL", help="The broker's Redis, instead of that of a node here.")
    ] = None,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install PySpark with pip when it is missing.")
    ] = True,
) -> None:
    """Analyse the overload of all nodes that share a Redis, until Ctrl-C.

    It goes on where it was: what it keeps for that is in the folder of the node, unless --checkpoint names another.
    """
    from analytics.connecting import URL

    address, prefix, place = find_log(url, name, folder, config, assignments)
    _see_that_java_runs()
    _see_that_spark_is_there(install)
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
    """The address of Redis, the prefix of its keys, and where to keep what is of its analysis; or the command ends."""
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
            find_redis(settings.redis.url)
        except RedisUnusable as error:
            refuse(str(error))
        return settings.redis.url, settings.redis.prefix, base_folder() / "analytics" / settings.redis.prefix
    node = chosen_node(name, settings.node.folder or None, config)
    with closing(ControlClient(node)) as control:
        control.request("status")  # it runs, or the command ends with how to start it
    address = f"unix://{node.path / 'redis' / 'redis.sock'}"
    try:
        find_redis(address)
    except RedisUnusable:
        refuse(
            f"The node {node.name} has no Redis of its own, or it does not answer yet: if the node was started with "
            "redis.url, name that with --redis.",
            NOT_SO,
        )
    return address, settings.redis.prefix, node.path / "analytics"


def java() -> str:
    """Why no Java that Spark runs on is here, "" if there is one."""
    home = os.environ.get("JAVA_HOME")
    binary = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if binary is None or not os.access(binary, os.X_OK):
        where = f"JAVA_HOME is {home}, and there is none" if home else "there is none on PATH"
        return f"The analysis needs Java {JAVA} or newer, and {where}: {GET_JAVA}."
    try:
        told = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=JAVA_PATIENCE, check=False)
        said = told.stderr + told.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None:
        return f"{binary} does not say which version of Java it is; the analysis needs {JAVA} or newer: {GET_JAVA}."
    if int(found[1]) < JAVA:
        return f"The analysis needs Java {JAVA} or newer, and {binary} is Java {found[1]}: {GET_JAVA}."
    return ""


def _see_that_java_runs() -> None:
    wrong = java()
    if wrong:
        refuse(wrong)


def _see_that_spark_is_there(install: bool) -> None:
    """Have pip install it when it is not, or end the command."""
    if all(find_spec(name) for name in MODULES):
        return
    by_hand = f"{sys.executable} -m pip install {' '.join(repr(need) for need in NEEDS)}"
    if not install:
        refuse(f"The analysis needs PySpark, which is not installed: `{by_hand}` installs it.")
    typer.echo("weir: Installing PySpark, which the analysis needs: some 400 MB, once.", err=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *NEEDS]
    if subprocess.run(command, check=False).returncode != 0:
        refuse(f"PySpark could not be installed, for the reason above: `{by_hand}` tries it again.")
