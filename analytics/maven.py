# Jars that Maven copies into the cache of the user, once: Spark's Kafka connector (connector.py), and Apache Kafka
# itself for tests and try-outs (deploy/kafka/server.py). It needs no more than a Python.
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


class MavenError(Exception):
    """The jars cannot be had; the words say what to do."""


def cache(name: str) -> Path:
    """The folder of the user in which the jars *name* stay."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "weir" / name


def version(pom: Path, artifact: str) -> str:
    """The version of *artifact* that *pom* asks for."""
    found = re.search(rf"<artifactId>{re.escape(artifact)}</artifactId>\s*<version>([^<]+)</version>", pom.read_text())
    assert found is not None
    return found[1]


def copied(pom: Path, target: Path, what: str) -> Path:
    """*target* with all jars that *pom* asks for; Maven copies them when they are missing. MavenError.

    *what* names them, for people.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _copy(pom, target, what)
    return target


def _copy(pom: Path, target: Path, what: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenError(f"The jars of {what} come through Maven, which is not on PATH: install the package maven.")
    print(f"Copying the jars of {what} into {target}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:  # a copy that is interrupted is none
        libs = Path(folder) / "libs"
        command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if ran.returncode:
            raise MavenError(f"Maven could not copy the jars of {what}:\n{(ran.stdout + ran.stderr).strip()}")
        libs.rename(target)
