# Builds Weir from the source tree in the current folder, and installs it into the environment whose Python runs this.
#
#     python deploy/install.py               build and install
#     python deploy/install.py --now         install the best build that exists; compile in the background
#     python deploy/install.py --only-build  build, and install nothing: this runs in the background
#     python deploy/install.py --stop        end a build that runs in the background
#     python deploy/install.py --wheel       print the file of the build that is installed
#
# gcc works for minutes on the hot modules, so a first start does not wait for it. A build is a wheel in a folder of its
# own, named after the checksum of the sources and the options. A build in the background only adds such a folder. Only
# the foreground replaces files of the environment, so a running node keeps its files. The next call finds the build and
# installs it in a second or two.
#
# Options, all from the environment: WEIR_COMPILE, WEIR_OPTIMIZE and CC (see setup.py); with WEIR_TRAIN=1 Weir is built
# twice and works in between, so gcc knows in the second build what is executed (deploy/train.py).
import argparse
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = ("pyproject.toml", "setup.py", "broker", "supervisor", "cli", "analytics")
ALSO_NEEDED: Final = ("README.md", "LICENSE")  # by the wheel, but an edit of them needs no new build
BUILDS: Final = Path(sys.prefix, "builds")
INSTALLED: Final = BUILDS / "installed"  # the name of the build that is installed
LOG: Final = BUILDS / "build.log"  # of the build in the background
KEPT: Final = 4  # builds: a few, so going back and forth between two of them (make run, make bench) builds nothing
INTERPRETED: Final = "interpreted"
TRAINED: Final = "-trained"
REASON: Final = re.compile(r"([A-Z][^\n]*: Weir is installed interpreted)")  # setup.py gives it
LOWEST_PRIORITY: Final = 19


@dataclass(frozen=True)
class Options:
    """How Weir is built."""

    compile: str = ""  # as in setup.py: "0" never, "1" or fail, "" if possible
    optimize: str = "3"
    train: bool = False
    cc: str = ""

    @classmethod
    def from_environment(cls) -> "Options":
        train = os.environ.get("WEIR_TRAIN") == "1"
        optimize = os.environ.get("WEIR_OPTIMIZE") or "3"
        return cls(os.environ.get("WEIR_COMPILE", ""), optimize, train, os.environ.get("CC", ""))

    @property
    def label(self) -> str:
        if self.compile == "0":
            return INTERPRETED
        return f"O{self.optimize}" + (TRAINED if self.train else "")

    def has_compiler(self) -> bool:
        """Whether the command of a C compiler exists; only setup.py finds out whether it works."""
        command = shlex.split(self.cc or sysconfig.get_config_var("CC") or "cc")
        return bool(command) and shutil.which(command[0]) is not None


def checksum(tree: Path, options: Options) -> str:
    """Changes with each edit of a source, not with its date, and with the compiler."""
    digest = hashlib.sha256(f"{options.cc} {options.has_compiler()}".encode())
    for source in SOURCES:
        path = tree / source
        files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
        for file in files:
            if file.suffix not in (".pyc", ".so"):
                digest.update(f"\0{file.relative_to(tree)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def wheel_of(build: Path) -> Path | None:
    """The wheel in *build*, or None if there is no such build."""
    return next(build.glob("*.whl"), None)


def is_compiled(build: Path) -> bool:
    wheel = wheel_of(build)
    return wheel is not None and not wheel.stem.endswith("-none-any")


def usable(build: Path, options: Options) -> bool:
    """Whether *build* exists. With WEIR_COMPILE=1 an interpreted one is not enough."""
    return wheel_of(build) is not None and (options.compile != "1" or is_compiled(build))


def best_build(sources: str, builds: Path, options: Options) -> Path | None:
    """The fastest build of *sources* that *options* allow: a trained one first, then by how far gcc optimized."""
    if options.compile == "0":
        named = builds / f"{sources}-{INTERPRETED}"
        return named if wheel_of(named) else None
    found = [one for one in builds.glob(f"{sources}-O*") if usable(one, options)]
    return max(found, key=lambda one: (is_compiled(one), one.name.endswith(TRAINED), one.name), default=None)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the environment's Python; if it fails, what it printed ends this program."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        sys.exit(done.stdout)
    return done


def pip(*arguments: str, **environment: str) -> str:
    return python("-m", "pip", "--disable-pip-version-check", *arguments, **environment).stdout


@contextmanager
def locked(path: Path, content: str = "") -> Iterator[None]:
    """Wait until no other process holds the lock *path*, and hold it. *content* tells the others about the holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(content)
        file.flush()
        yield
        file.truncate(0)


class Installer:
    """Builds of one source tree, and the one that is installed."""

    def __init__(self, tree: Path, options: Options) -> None:
        self.tree = tree
        self.options = options
        self.sources = checksum(tree, options)

    @property
    def wanted(self) -> Path:
        """The build that the options name."""
        return BUILDS / f"{self.sources}-{self.options.label}"

    def install_wanted(self) -> None:
        """Install what the options name. A build of the same sources in the background is waited for."""
        if not usable(self.wanted, self.options):
            self.build_alone(background=False)
        self.install(self.wanted)

    def install_now(self) -> None:
        """Install the best build that exists. Without a compiled one, install Weir interpreted and start a build."""
        if (best := best_build(self.sources, BUILDS, self.options)) is not None:
            self.install(best)
            return
        if self.options.compile == "0" or not self.options.has_compiler():
            self.install_wanted()
            return
        simple = Installer(self.tree, Options(compile="0", cc=self.options.cc))
        simple.install_wanted()
        self.stop_background(unless=self.wanted.name)
        with LOG.open("wb") as log:
            subprocess.Popen(
                ["nice", "-n", str(LOWEST_PRIORITY), sys.executable, __file__, "--only-build"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal ends the node, not the build
                cwd=self.tree,
            )
        print(
            "Weir runs interpreted this time: it is being compiled in the background, for the next start.", flush=True
        )

    def build_alone(self, background: bool) -> None:
        """Make the wanted build while no other process makes a compiled one."""
        if self.options.compile == "0":
            self.build()
            return
        if not background:
            self.stop_background(unless=self.wanted.name)
        with locked(BUILDS / "lock", f"{os.getpid()} {self.wanted.name}" if background else ""):
            if not usable(self.wanted, self.options):
                self.build()

    def build(self) -> None:
        """Build from a copy of the sources: setuptools would otherwise go on with what an earlier build left."""
        BUILDS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="new-", dir=BUILDS) as folder:
            copy, result = Path(folder, "source"), Path(folder, "result")
            self.copy_sources(copy)
            environment = {"WEIR_COMPILE": self.options.compile, "WEIR_OPTIMIZE": self.options.optimize}
            if self.options.train and self.options.compile != "0":
                environment["WEIR_PROFILE"] = str(Path(folder, "profile"))
                self.make_wheel(copy, result, environment)
                with locked(BUILDS / "environment"):
                    INSTALLED.unlink(missing_ok=True)
                    pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel_of(result)))
                    print("Running Weir under load, to compile it again with the profile of that", flush=True)
                    python(str(self.tree / "deploy" / "train.py"), WEIR_PROFILE=environment["WEIR_PROFILE"])
                shutil.rmtree(result)
                shutil.rmtree(copy / "build")
            said = self.make_wheel(copy, result, environment)
            for reason in sorted(set(REASON.findall(said))):
                print(reason, flush=True)
            shutil.rmtree(self.wanted, ignore_errors=True)
            result.rename(self.wanted)

    def copy_sources(self, copy: Path) -> None:
        copy.mkdir()
        for source in (*SOURCES, *ALSO_NEEDED):
            path = self.tree / source
            if path.is_dir():
                shutil.copytree(path, copy / source, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, copy)

    @staticmethod
    def make_wheel(copy: Path, result: Path, environment: dict[str, str]) -> str:
        """Put the wheel into *result*; returns what the build printed."""
        arguments = ["wheel", "--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", str(result), str(copy)]
        return pip(*arguments, **environment)

    def install(self, build: Path) -> None:
        with locked(BUILDS / "environment"):
            if INSTALLED.is_file() and INSTALLED.read_text() == build.name:
                return
            print("Installing Weir", flush=True)
            INSTALLED.unlink(missing_ok=True)
            pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel_of(build)))
            weir = [str(Path(sys.executable).with_name("weir")), "--version"]
            print(subprocess.run(weir, capture_output=True, text=True, check=True).stdout, end="", flush=True)
            INSTALLED.write_text(build.name)
            os.utime(build)
        builds = sorted((one.parent for one in BUILDS.glob("*/*.whl")), key=lambda one: one.stat().st_mtime)
        for old in builds[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    @staticmethod
    def stop_background(unless: str = "") -> None:
        """End the build that runs in the background, except if its name is *unless*."""
        lock = BUILDS / "lock"
        if not lock.exists():
            return
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid, _, name = file.read().partition(" ")
                if pid and name != unless:
                    os.killpg(int(pid), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(prog="install.py", description="Build and install Weir.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--now", action="store_true", help="install the best build that exists; build in the background")
    what.add_argument("--only-build", action="store_true", help="build, and install nothing")
    what.add_argument("--stop", action="store_true", help="end the build that runs in the background")
    what.add_argument("--wheel", action="store_true", help="print the file of the build that is installed")
    arguments = parser.parse_args()
    installer = Installer(Path(), Options.from_environment())
    if arguments.stop:
        installer.stop_background()
    elif arguments.wheel:
        print(wheel_of(BUILDS / INSTALLED.read_text()))
    elif arguments.only_build:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so temporary folders are removed
        installer.build_alone(background=True)
    elif arguments.now:
        installer.install_now()
    else:
        installer.install_wanted()


if __name__ == "__main__":
    main()
