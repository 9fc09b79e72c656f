# Compiles the hot modules with mypyc where there is a C compiler; elsewhere the same files run interpreted.
#
# WEIR_COMPILE=0 never compiles, WEIR_COMPILE=1 fails where it cannot, unset does what it can.
# All hot modules are one group: calls between them are C calls, and they are compiled together or not at all.
# WEIR_PROFILE names a folder, for gcc: what is executed is counted there, or, if that was done, what was executed is
# put where it is reached soonest. A message takes a tenth less of the processor then (`make` does both: WEIR_TRAIN=1).
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# What is compiled: the modules that work per message, per packet or per connection. Everything else stays ordinary
# Python. Two of these packages have modules that must stay ordinary:
# metrics/record.py, as the analysis imports it where nothing is compiled;
# net/transports/certificates.py and upgrade.py, which run once a start and once a WebSocket connection.
COMPILED = [
    "broker/auth/acl.py",
    "broker/auth/authenticator.py",
    "broker/auth/failures.py",
    "broker/auth/lines.py",
    "broker/auth/passwords.py",
    "broker/auth/rules.py",
    "broker/cluster/*.py",
    "broker/config/rate.py",
    "broker/config/tenants.py",
    "broker/control/heartbeat.py",
    "broker/control/link.py",
    "broker/delivery/*.py",
    "broker/insight/[!l]*.py",
    "broker/metrics/[!r]*.py",
    "broker/metrics/recorder.py",
    "broker/metrics/report.py",
    "broker/mqtt/*.py",
    "broker/net/*.py",
    "broker/net/transports/[!cu]*.py",
    "broker/overload/*.py",
    "broker/overload/quotas/*.py",
    "broker/overload/trace/*.py",
    "broker/protocol/*.py",
    "broker/routing/*.py",
    "broker/session/*.py",
    "broker/session/transfer/*.py",
    "broker/store/*.py",
    "broker/store/redis/*.py",
    "broker/worker_id.py",
    "cli/load/channel.py",
    "cli/load/client.py",
    "cli/load/histogram.py",
    "cli/load/network.py",
    "cli/load/pacing.py",
    "cli/load/publisher.py",
    "cli/load/subscriber.py",
    "cli/load/websocket.py",
]
GROUP = "weir"  # the shared library of the group is weir__mypyc
# All of it is one library, so its functions may call each other directly, and the compiler may merge them.
DIRECT_CALLS = ["-fno-semantic-interposition", "-fvisibility=hidden"]
COUNT = ["-fprofile-generate={}"]
USE = ["-fprofile-use={}", "-fprofile-correction", "-Wno-missing-profile"]
WANTED = os.environ.get("WEIR_COMPILE", "")
PROFILE = os.environ.get("WEIR_PROFILE", "")


def hot_modules() -> list[str]:
    sources = (path for pattern in COMPILED for path in Path().glob(pattern))
    return sorted(path.as_posix() for path in sources if path.name != "__init__.py")


def c_compiler_works() -> bool:
    """Whether a file that includes Python's headers really compiles and links; CC names the compiler."""
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

    # Our own strict settings are for `make check`: a build must not fail because a stub package is not there.
    options = ["--config-file=", "--ignore-missing-imports", *hot_modules()]
    try:
        extensions: list[Extension] = mypycify(options, opt_level="3", debug_level="0", group_name=GROUP)
        for extension in extensions:  # which share mypyc's lists
            extension.extra_compile_args = [*extension.extra_compile_args, *DIRECT_CALLS, *profiling()]
            extension.extra_link_args = [*extension.extra_link_args, *profiling()]
    except SystemExit:  # mypyc has printed what it does not accept
        if WANTED == "1":
            raise
        print("Mypyc does not accept the sources: Weir is installed interpreted.", file=sys.stderr)
        return []
    return extensions


def profiling() -> list[str]:
    """The options for PROFILE."""
    if not PROFILE:
        return []
    counted = any(Path(PROFILE).glob("*.gcda"))
    return [option.format(PROFILE) for option in (USE if counted else COUNT)]


class BuildAllOrNone(build_ext):  # type: ignore[misc]  # setuptools has types in some versions only
    """A group of which a part did not build would not import at all; without it, the sources run."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # whatever the compiler did, from too little memory to a full disk
            if WANTED == "1":
                raise
            print(f"Compiling failed ({error}): Weir is installed interpreted.", file=sys.stderr)
            for built in map(Path, self.get_outputs()):
                built.unlink(missing_ok=True)
            self.extensions: list[Extension] = []


setup(ext_modules=compiled(), cmdclass={"build_ext": BuildAllOrNone})
