# Compiles the hot modules with mypyc if a C compiler works; without one the same modules run interpreted.
#
# WEIR_COMPILE=0 never compiles; WEIR_COMPILE=1 fails if compiling is impossible; unset compiles if possible.
# WEIR_OPTIMIZE is gcc's level, 3 unless it is set. -O1 halves the time of gcc, and a message costs more CPU.
# WEIR_PROFILE is a folder for gcc's profile. The first build counts there what is executed; gcc optimizes a build that
# finds counts by them, and a message takes a tenth less CPU. deploy/install.py does both if WEIR_TRAIN=1.
# All hot modules are one group: they are compiled together or not at all, and calls between them are C calls.
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Modules that work per message, per packet or per connection are compiled, and all else stays ordinary Python.
# tests/architecture/test_compiled.py checks that each pattern matches a module and that the installed copy agrees.
COMPILED = [
    "broker/auth/*.py",
    "broker/carrier/turns.py",
    "broker/carrier/worker_lanes.py",
    "broker/cluster/*.py",
    "broker/config/patterns.py",
    "broker/config/rate.py",
    "broker/config/tenants.py",
    "broker/control/heartbeat.py",
    "broker/control/link.py",
    "broker/delivery/*.py",
    "broker/insight/*.py",
    "broker/metrics/*.py",
    "broker/mqtt/*.py",
    "broker/net/*.py",
    "broker/net/transports/*.py",
    "broker/overload/*.py",
    "broker/overload/quotas/*.py",
    "broker/overload/trace/*.py",
    "broker/protocol/*.py",
    "broker/routing/*.py",
    "broker/session/*.py",
    "broker/session/transfer/*.py",
    "broker/store/*.py",
    "broker/store/durable/*.py",
    "broker/store/inbound/*.py",
    "broker/store/logs/*.py",
    "broker/store/redis/*.py",
    "broker/worker_id.py",
    "cli/load/*.py",
]
# Modules that a pattern above matches and that stay ordinary Python.
INTERPRETED = [
    "broker/auth/files.py",  # runs at the start and at SIGHUP
    "broker/cluster/backbone_parts.py",  # composition, runs once
    "broker/cluster/parts.py",  # composition, runs once
    "broker/insight/logs.py",  # configures structlog, which is ordinary Python itself
    "broker/insight/worker_metrics.py",  # runs once a second
    "broker/metrics/record.py",  # the analysis imports it, also where nothing is compiled
    "broker/net/transports/certificates.py",  # runs at the start and at SIGHUP
    "broker/net/transports/upgrade.py",  # runs once per WebSocket connection
    "broker/net/transports/upgrade_tasks.py",
    "broker/protocol/parts.py",  # composition, runs once
    "broker/store/logs/topics.py",  # frozen values
    "cli/load/conductor.py",  # these four run a few times per load
    "cli/load/plan.py",
    "cli/load/process.py",
    "cli/load/report.py",
]
GROUP = "weir"  # the shared library of the group is weir__mypyc
# The group is one library: its functions may call each other directly, and the compiler may inline them.
DIRECT_CALLS = ["-fno-semantic-interposition", "-fvisibility=hidden"]
# Part of mypyc's -Wall. In C that mypyc indents by a thousand columns, gcc spends four fifths of its time on it.
FEWER_WARNINGS = ["-Wno-misleading-indentation"]
COUNT = ["-fprofile-generate={}"]
USE = ["-fprofile-use={}", "-fprofile-correction", "-Wno-missing-profile"]
WANTED = os.environ.get("WEIR_COMPILE", "")
OPTIMIZE = os.environ.get("WEIR_OPTIMIZE") or "3"
PROFILE = os.environ.get("WEIR_PROFILE", "")


def hot_modules() -> list[str]:
    sources = (path for pattern in COMPILED for path in Path().glob(pattern) if path.name != "__init__.py")
    return sorted({path.as_posix() for path in sources} - set(INTERPRETED))


def c_compiler_works() -> bool:
    """Whether a file that includes Python's headers compiles and links; CC names the compiler."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "trivial.c")
        source.write_text("#include <Python.h>\nint trivial(void) { return PY_MAJOR_VERSION; }\n")
        include = sysconfig.get_path("include")
        arguments = ["-shared", "-fPIC", f"-I{include}", str(source), "-o", str(source.with_suffix(".so"))]
        try:
            return subprocess.run([*shlex.split(command), *arguments], capture_output=True).returncode == 0
        except OSError:
            return False


def compiled() -> list[Extension]:
    """The extensions to build: those of mypyc, or none."""
    if WANTED == "0":
        return []
    if not c_compiler_works():
        if WANTED == "1":
            sys.exit("WEIR_COMPILE=1, but no C compiler works here (gcc and Python's headers are needed).")
        print("No C compiler works here: Weir is installed interpreted.", file=sys.stderr)
        return []
    from mypyc.build import mypycify

    # The strict settings of pyproject.toml are for `make check`: a missing stub package must not fail a build.
    options = ["--config-file=", "--ignore-missing-imports", *hot_modules()]
    try:
        extensions: list[Extension] = mypycify(options, opt_level=OPTIMIZE, debug_level="0", group_name=GROUP)
        for extension in extensions:  # the lists of arguments are shared between them, so each gets lists of its own
            extension.extra_compile_args = [*extension.extra_compile_args, *DIRECT_CALLS, *FEWER_WARNINGS, *profiling()]
            extension.extra_link_args = [*extension.extra_link_args, *profiling()]
    except SystemExit:  # mypyc has printed what it does not accept
        if WANTED == "1":
            raise
        print("Mypyc does not accept the sources: Weir is installed interpreted.", file=sys.stderr)
        return []
    return extensions


def profiling() -> list[str]:
    """The options of gcc for PROFILE: count, or use what was counted."""
    if not PROFILE:
        return []
    counted = any(Path(PROFILE).glob("*.gcda"))
    return [option.format(PROFILE) for option in (USE if counted else COUNT)]


class BuildAllOrNone(build_ext):  # type: ignore[misc]  # setuptools has types in some versions only
    """Removes every extension if one of them did not build: a part of the group could not be imported."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # any failure of the compiler, from too little memory to a full disk
            if WANTED == "1":
                raise
            print(f"Compiling failed ({error}): Weir is installed interpreted.", file=sys.stderr)
            for built in map(Path, self.get_outputs()):
                built.unlink(missing_ok=True)
            self.extensions: list[Extension] = []


setup(ext_modules=compiled(), cmdclass={"build_ext": BuildAllOrNone})
