# The other end of a node's control socket (supervisor/control.py). What can go wrong is a sentence that ends the
# command and says what to do next.
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
from supervisor.control import VERSION
from supervisor.folder import NodeFolder, folders

PATIENCE: Final = 15.0  # seconds; a worker has five for its part of an answer
RECEIVE: Final = 256 * 1024
LOOK_AGAIN: Final = 0.01  # seconds; a lock tells nobody when it is free in time
GONE: Final = 5.0  # seconds between a node's last word and its end


class NoAnswer(Exception):
    """A node did not answer, or refused. Its text is one sentence that says what to do next."""

    def __init__(self, sentence: str, code: int = MISUSE) -> None:
        """*code*: the exit code of a command that ends for it."""
        super().__init__(sentence)
        self.code = code


class Answers:
    """One request to a node, and the connection that it went by."""

    def __init__(self, folder: NodeFolder, patience: float = PATIENCE) -> None:
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(patience)

    def ask(self, command: str, **arguments: object) -> Any:
        """What the node answers; whatever is wrong ends the command."""
        try:
            return self.try_to_ask(command, **arguments)
        except NoAnswer as error:
            refuse(str(error), error.code)

    def try_to_ask(self, command: str, **arguments: object) -> Any:
        """What the node answers. NoAnswer."""
        folder = self._folder
        try:
            if folder.running() is None:
                raise NoAnswer(_not_running(folder), NOT_SO)
            self._socket.connect(os.fspath(folder.control))
            self._socket.sendall(json.dumps({"weir": VERSION, "command": command, **arguments}).encode() + b"\n")
            line = self._line()
        except PermissionError:
            raise NoAnswer(_no_permission(folder)) from None
        except TimeoutError:
            raise NoAnswer(_silent(folder)) from None
        except OSError as error:
            raise NoAnswer(
                f"The node {folder.name} cannot be asked: {error.strerror}. It may be starting or stopping: try again."
            ) from None
        if not line:
            raise NoAnswer(f"The node {folder.name} ended before it answered.", NOT_SO)
        answer = json.loads(line)
        if not answer["ok"]:
            raise NoAnswer(answer["error"], NOT_SO if command in ("client", "kick", "limit_drop", "why") else MISUSE)
        return answer["result"]

    def close(self) -> None:
        """End the connection; what ends with its command need not."""
        self._socket.close()

    def wait_for_end(self, patience: float) -> None:
        """Wait until the node has ended, and nothing of it is left."""
        deadline = time.monotonic() + patience
        self._socket.settimeout(patience)
        try:
            while self._socket.recv(RECEIVE):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            self._endless()
        while self._folder.running() is not None:
            if time.monotonic() >= deadline + GONE:
                self._endless()
            time.sleep(LOOK_AGAIN)

    def _endless(self) -> Never:
        pid = self._folder.running()
        refuse(f"The node {self._folder.name} does not end: `kill -9 {pid}` ends it and all that belongs to it.")

    def _line(self) -> bytes:
        data = bytearray()
        while not data.endswith(b"\n"):
            more = self._socket.recv(RECEIVE)
            if not more:
                break
            data += more
        return bytes(data)


def chosen(name: str | None, folder: str | None, config: Path | None = None) -> NodeFolder:
    """The folder of the node that the options mean: they win over the environment and the file."""
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
    """The name of the node that *folder* belongs to, "" if that is not to be found out."""
    try:
        return (folder.path / "node").read_text().strip()
    except OSError:
        return ""


def _not_running(folder: NodeFolder) -> str:
    others = [one.name for one in folders() if one.name != folder.name and runs(one)]
    if others:
        return f"The node {folder.name} is not running; --name chooses among those that are: {', '.join(others)}."
    return f"The node {folder.name} is not running: `weir start --detach {_start_options(folder)}` starts it."


def _start_options(folder: NodeFolder) -> str:
    if folder.options.startswith("--name"):
        return folder.options
    return f"--name {folder.name} --set node.folder={shlex.quote(str(folder.path))}"


def _silent(folder: NodeFolder) -> str:
    return (
        f"The node {folder.name} does not answer: `weir logs {folder.options}` may say why, "
        f"and `kill -9 {folder.running()}` ends it and all that belongs to it."
    )


def runs(folder: NodeFolder) -> bool:
    """Whether it runs, or somebody else's may: why that cannot be asked is told when it is."""
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
    return f"No permission for the node {folder.name}: only {who} may; try `sudo -u {user} weir ...`."
