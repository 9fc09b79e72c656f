# The client of a node's control socket (supervisor/control.py). Each failure is one sentence that says what to do next.
import json
import os
import pwd
import shlex
import socket
import time
from pathlib import Path
from typing import Any, Final, Never

from broker.config.sources import Given
from cli.options import MISUSE, NOT_SO, load_settings, refuse
from supervisor.folder import NodeFolder, folders
from supervisor.request import encode

PATIENCE: Final = 15.0  # seconds; a worker has five for its part of an answer
RECEIVE: Final = 256 * 1024
LOOK_AGAIN: Final = 0.01  # seconds between two looks at the lock of a node
GONE: Final = 5.0  # seconds between the end of the connection and that of the process


class RequestFailed(Exception):
    """A node did not answer, or refused the request. The text is one sentence for the user."""

    def __init__(self, sentence: str, code: int = MISUSE) -> None:
        """*code*: the exit code of the command if it ends because of this failure."""
        super().__init__(sentence)
        self.code = code


class ControlClient:
    """A connection to the control socket of a node, for one request."""

    def __init__(self, folder: NodeFolder, patience: float = PATIENCE) -> None:
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(patience)

    def request(self, command: str, **arguments: object) -> Any:
        """Send a request and return the result. A failure ends the command."""
        try:
            return self.try_request(command, **arguments)
        except RequestFailed as error:
            refuse(str(error), error.code)

    def try_request(self, command: str, **arguments: object) -> Any:
        """Send a request and return the result. RequestFailed."""
        folder = self._folder
        try:
            if folder.running() is None:
                raise RequestFailed(_not_running(folder), NOT_SO)
            self._socket.connect(os.fspath(folder.control))
            self._socket.sendall(encode(command, arguments))
            line = self._line()
        except PermissionError:
            raise RequestFailed(_no_permission(folder)) from None
        except TimeoutError:
            raise RequestFailed(_silent(folder)) from None
        except OSError as error:
            raise RequestFailed(
                f"The node {folder.name} cannot be reached: {error.strerror}. "
                "It may be starting or stopping; try again."
            ) from None
        if not line:
            raise RequestFailed(f"The node {folder.name} stopped before it answered.", NOT_SO)
        answer = json.loads(line)
        if not answer["ok"]:
            missing = not answer["found"] or command in ("client", "kick", "limit_drop", "ban_remove", "why")
            raise RequestFailed(answer["error"], NOT_SO if missing else MISUSE)
        return answer["result"]

    def close(self) -> None:
        """Close the connection. A command that exits anyway need not call this."""
        self._socket.close()

    def wait_for_end(self, patience: float) -> None:
        """Wait until the node and all its processes have ended; after *patience* seconds the command fails."""
        deadline = time.monotonic() + patience
        self._socket.settimeout(patience)
        try:
            while self._socket.recv(RECEIVE):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            self._does_not_stop()
        while self._folder.running() is not None:
            if time.monotonic() >= deadline + GONE:
                self._does_not_stop()
            time.sleep(LOOK_AGAIN)

    def _does_not_stop(self) -> Never:
        pid = self._folder.running()
        refuse(f"The node {self._folder.name} does not stop. `kill -9 {pid}` ends it and its child processes.")

    def _line(self) -> bytes:
        data = bytearray()
        while not data.endswith(b"\n"):
            more = self._socket.recv(RECEIVE)
            if not more:
                break
            data += more
        return bytes(data)


def chosen_node(name: str | None, folder: str | None, config: Path | None = None) -> NodeFolder:
    """The folder of the node that the options name. Options override the environment and the file."""
    options = []
    if name is not None:
        options.append(Given("node.name", name, "--name"))
    if folder is not None:
        options.append(Given("node.folder", folder, "--folder"))
    node = load_settings(config, None, options).config.node
    found = NodeFolder(node.name, node.folder)
    if name is None and node.folder:
        found.name = owner(found) or found.name
    return found


def owner(folder: NodeFolder) -> str:
    """The name of the node that *folder* belongs to, or "" if it cannot be read."""
    try:
        return (folder.path / "node").read_text().strip()
    except OSError:
        return ""


def _not_running(folder: NodeFolder) -> str:
    others = [one.name for one in folders() if one.name != folder.name and runs(one)]
    if others:
        return f"The node {folder.name} is not running. Running nodes, for --name: {', '.join(others)}."
    return f"The node {folder.name} is not running. `weir start --detach {_start_options(folder)}` starts it."


def _start_options(folder: NodeFolder) -> str:
    if folder.options.startswith("--name"):
        return folder.options
    return f"--name {folder.name} --set node.folder={shlex.quote(str(folder.path))}"


def _silent(folder: NodeFolder) -> str:
    return (
        f"The node {folder.name} does not answer. `weir logs {folder.options}` may show why; "
        f"`kill -9 {folder.running()}` ends the node and its child processes."
    )


def runs(folder: NodeFolder) -> bool:
    """Whether the node is running. True if that cannot be determined: a later request reports why."""
    try:
        return folder.running() is not None
    except OSError:
        return True


def _no_permission(folder: NodeFolder) -> str:
    try:
        user = pwd.getpwuid(folder.path.stat().st_uid).pw_name
    except (OSError, KeyError):
        user = "root"
    who = "root" if user == "root" else f"{user} and root"
    return f"No permission to control the node {folder.name}. Only {who} may; try `sudo -u {user} weir ...`."
