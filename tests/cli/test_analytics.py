# What `weir analytics run` says before there is a Spark; with one it is in tests/analytics/test_job.py.
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
import typer

from analytics.connecting import connect
from broker.config.schema import Redis
from cli import analytics
from cli.dashboard import _finder
from supervisor.folder import NodeFolder
from tests.conftest import ROOT
from tests.redis_servers import RunningRedis


def weir(*arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code and what was said of the error."""
    done = subprocess.run(
        [sys.executable, "-m", "cli", "analytics", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.strip()


def fake_java(folder: Path, says: str) -> str:
    """JAVA_HOME of a Java that says so of itself."""
    (folder / "bin").mkdir(parents=True)
    binary = folder / "bin" / "java"
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    binary.chmod(0o755)
    return str(folder)


def test_what_is_installed_when_it_is_missing_is_the_extra() -> None:
    """The command would install another PySpark than the one that all of this was tried with."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)

    assert list(analytics.NEEDS) == project["project"]["optional-dependencies"]["analytics"]
    assert set(analytics.NEEDS) <= set(project["dependency-groups"]["dev"])


def test_without_a_node_it_says_how_to_start_one(tmp_path: Path) -> None:
    """Somebody's first try would be a traceback from a socket."""
    code, said = weir("--folder", str(tmp_path / "none"))

    assert 1 == code
    assert said.startswith("weir: The node weir is not running. `weir start --detach --name weir --set node.folder=")


def test_a_node_whose_redis_is_not_there_is_told(folder: str) -> None:
    """The job would wait for a socket that will never be there."""
    socket = Path(folder) / "redis" / "redis.sock"
    hidden = socket.rename(socket.with_suffix(".hidden"))
    try:
        code, said = weir("--folder", folder)
    finally:
        hidden.rename(socket)

    assert (1, True) == (code, said.startswith("weir: The embedded Redis of the node "))
    assert " is not ready: " in said


def test_the_redis_of_a_node_is_found(folder: str, tmp_path: Path) -> None:
    """Who only wants to see the analysis would have to know where a socket lies."""
    code, said = weir("--folder", folder, JAVA_HOME=str(tmp_path))

    assert (2, True) == (code, said.startswith("weir: The analysis needs Java 17"))


def test_an_address_that_is_none_and_a_redis_that_is_away_are_told() -> None:
    """The job would start Spark, and wait for ever for what will never be there."""
    assert (2, "weir: nonsense is not an address of Redis: it must be") == (
        (told := weir("--redis", "nonsense"))[0],
        told[1].partition(" redis://")[0],
    )
    code, said = weir("--redis", "redis://127.0.0.1:1")
    assert (2, "weir: redis://127.0.0.1:1 cannot be reached: ") == (code, said[:45])


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11: install Java"),
        ('java version "1.8.0_292"', "is Java 8: install Java"),
        ("Segmentation fault", "java is unknown; the analysis needs"),
    ],
)
def test_a_java_that_will_not_do_is_told(
    start_redis: Callable[..., RunningRedis], tmp_path: Path, says: str, expected: str
) -> None:
    """Spark would end with forty lines about class file versions."""
    server = start_redis()
    home = fake_java(tmp_path / "java", says)

    code, said = weir("--redis", f"unix://{server.socket}", JAVA_HOME=home)

    assert 2 == code
    assert expected in said
    assert 1 == len(said.splitlines())


def test_no_java_is_told(start_redis: Callable[..., RunningRedis], tmp_path: Path) -> None:
    """Spark would say `JAVA_HOME is not set`, and not what to do."""
    server = start_redis()

    code, said = weir("--redis", f"unix://{server.socket}", JAVA_HOME=str(tmp_path))
    _, without = weir("--redis", f"unix://{server.socket}", JAVA_HOME="", PATH=str(tmp_path))

    assert (2, 1) == (code, len(said.splitlines()))
    assert said.startswith(f"weir: The analysis needs Java 17 or newer, but JAVA_HOME ({tmp_path}) has no java")
    assert without.startswith(
        "weir: The analysis needs Java 17 or newer, but there is no java on PATH: install Java, for example"
    )


def test_a_java_that_will_do_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody could run the analysis with a newer Java."""
    for version in ("17.0.15", "21", "25-ea"):
        monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / version, f'openjdk version "{version}" 2025-04-15'))
        assert "" == analytics.java()


def test_what_is_missing_is_installed_or_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command would end with a ModuleNotFoundError, or install 400 MB for somebody who said no."""
    asked = tmp_path / "asked"
    pip = tmp_path / "python"
    pip.write_text(f'#!/bin/sh\necho "$@" > {asked}\nexit 1\n')
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    monkeypatch.setattr(analytics, "MODULES", ("pyspark", "no_such_module"))

    with pytest.raises(typer.Exit) as refused:
        analytics._check_spark(install=False)
    assert (2, False) == (refused.value.exit_code, asked.exists())
    assert f"`{pip} -m pip install 'pyspark>=4.2,<4.3' " in capfd.readouterr().err
    with pytest.raises(typer.Exit):
        analytics._check_spark(install=True)
    assert f"-m pip install --quiet --disable-pip-version-check {' '.join(analytics.NEEDS)}\n" == asked.read_text()
    first, second = capfd.readouterr().err.splitlines()
    assert "weir: Installing PySpark (about 400 MB, only once)." == first
    assert second.startswith("weir: PySpark could not be installed for the reason above: `")


def test_the_kafka_of_a_cluster_is_that_of_the_options_or_of_the_configuration(
    start_redis: Callable[..., RunningRedis], tmp_path: Path
) -> None:
    """The analysis of nodes on other machines would read the stream of Redis, or connect without the password."""
    url = f"unix://{start_redis().socket}"
    (tmp_path / "password").write_text("secret\n")
    config = tmp_path / "weir.toml"
    config.write_text(
        f"""[kafka]
hosts = ["k1:9092"]
options = {{sasl_mechanism = "PLAIN", sasl_plain_username = "weir"}}
password_file = "{tmp_path / "password"}"
"""
    )

    assert analytics.find_logs(url, None, None, None, None).kafka is None
    found = analytics.find_logs(url, None, None, None, config).kafka
    assert found is not None
    assert (("k1:9092",), "secret") == (found.hosts, found.password)
    assert {"sasl_mechanism": "PLAIN", "sasl_plain_username": "weir"} == found.options
    other = analytics.find_logs(url, "k2:1,k3:2", None, None, config).kafka
    assert other is not None
    assert (("k2:1", "k3:2"), "secret") == (other.hosts, other.password)
    assert analytics.find_logs(url, "", None, None, config).kafka is None


def test_options_that_java_cannot_be_told_end_the_command(start_redis: Callable[..., RunningRedis]) -> None:
    """Spark would start, and wait for ever for what never comes."""
    options = ("--kafka", "k1:9092", "--set", 'kafka.options={ssl_ciphers = "x"}')

    code, said = weir("--redis", f"unix://{start_redis().socket}", *options)

    assert (2, True) == (code, said.startswith("weir: The analysis cannot connect to Kafka with ssl_ciphers = 'x'"))


def test_the_password_of_redis_is_that_of_its_file(start_redis: Callable[..., RunningRedis], tmp_path: Path) -> None:
    """A Redis whose password is changed now and then would end the analysis and the dashboard, or keep them out."""
    server, file, config = start_redis(more="requirepass a@b\n"), tmp_path / "password", tmp_path / "weir.toml"
    file.write_text("a@b\n")
    config.write_text(f"redis.password_file = '{file}'\n")

    found = analytics.find_logs(f"unix://{server.socket}", None, None, None, config)

    with connect(found.redis) as client:
        assert client.ping()
        client.config_set("requirepass", "c/d")
    with connect(found.redis) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    file.write_text("c/d\n")
    with connect(found.redis) as client:  # of a job that runs since then
        assert client.ping()
    here = NodeFolder("none", str(tmp_path / "none"))
    assert "c/d" == _finder(Redis(url=f"unix://{server.socket}", password_file=str(file)), here)().password
