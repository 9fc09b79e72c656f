# Loads the installed Weir for a minute, in all the ways that should be fast: a build that counts what is executed
# (in WEIR_PROFILE, setup.py) learns from it what to put where.
#
# Modest rates: what is to be learnt is the way of a message, and not what a broker does that counts each step of it.
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WEIR = Path(sys.executable).with_name("weir")
WORKERS = (1, 2)  # two: what one tells another counts as well
SECONDS = 1.5  # each load
LOADS = (
    ("tcp", "--pattern pairs --publishers 50 --qos 1 --rate 5000 --version 3.1.1"),
    ("tcp", "--pattern pairs --publishers 10 --qos 1 --window 100"),
    ("tcp", "--pattern pairs --publishers 100 --qos 0 --rate 10000"),
    ("tcp", "--pattern pairs --publishers 10 --qos 2 --window 20"),
    ("tcp", "--pattern fan-out --subscribers 200 --qos 0 --rate 100 --version 3.1.1"),
    ("tcp", "--pattern fan-out --subscribers 200 --qos 1 --rate 50"),
    ("tcp", "--pattern fan-in --publishers 100 --qos 1 --rate 3000"),
    ("ws", "--pattern pairs --publishers 20 --qos 1 --rate 3000"),
)


def weir(*arguments: str) -> str:
    """What the command printed; if it fails, what it said ends this, too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    done = subprocess.run([WEIR, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"weir {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def train(workers: int, folder: Path) -> None:
    """Have a node of *workers*, with nothing but the defaults and in a *folder* of its own, work for all loads."""
    settings = {"node.folder": folder, "listeners.ws.enabled": "true", "listeners.ws.port": 0}
    options = [f"--set={key}={value}" for key, value in settings.items()]
    weir("start", f"--config={os.devnull}", "--detach", f"--workers={workers}", "--port=0", *options)
    try:
        status: dict[str, Any] = json.loads(weir("status", f"--folder={folder}", "--json"))
        for transport, load in LOADS:
            port = next(port for name, _, port in status["listeners"] if name == transport)
            scheme = "mqtt" if transport == "tcp" else transport
            weir("bench", f"{scheme}://localhost:{port}", *load.split(), f"--seconds={SECONDS}", "--json")
    finally:
        weir("stop", f"--folder={folder}")


if __name__ == "__main__":
    for count in WORKERS:
        with tempfile.TemporaryDirectory() as place:
            train(count, Path(place) / "node")
    if not any(Path(os.environ["WEIR_PROFILE"]).glob("*.gcda")):
        sys.exit("Weir worked, and nothing was counted: WEIR_TRAIN=1 needs gcc.")
