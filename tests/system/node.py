# A node as a test sees it through its control socket, spoken here by hand: the format is one that others may speak.
import json
import socket
from pathlib import Path
from typing import Any, Final

PATIENCE: Final = 15.0  # seconds
RECEIVE: Final = 65536


def say(control: Path, request: bytes) -> dict[str, Any]:
    """What the node answers to the bytes *request*. OSError: there is none."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(PATIENCE)
        asking.connect(str(control))
        asking.sendall(request)
        data = b""
        while not data.endswith(b"\n"):
            more = asking.recv(RECEIVE)
            assert more, f"the node does not answer {request[:80]!r}"
            data += more
    answer: dict[str, Any] = json.loads(data)
    return answer


def ask(control: Path, command: str, **arguments: object) -> Any:
    """The result of *command*."""
    answer = say(control, json.dumps({"weir": 1, "command": command, **arguments}).encode() + b"\n")
    assert answer["ok"], answer
    return answer["result"]


def status(control: Path) -> dict[str, Any]:
    told: dict[str, Any] = ask(control, "status")
    return told


def serves(control: Path) -> bool:
    """Whether all workers of the node serve."""
    try:
        return bool(status(control)["state"] == "serving")
    except OSError:
        return False


def worker_pids(control: Path) -> list[int]:
    return [worker["pid"] for worker in status(control)["workers"]]
