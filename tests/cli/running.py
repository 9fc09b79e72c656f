import os
import subprocess
import sys


def weir(*arguments: str, typed: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command `weir`, of the form that this test run is about; *typed* is its input. A node has one worker."""
    command = [sys.executable, "-m", "cli", *arguments]
    environ = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "120", "WEIR_NODE__WORKERS": "1", **environ}
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, env=environ)
