# The folder of a node: what it keeps, and how a second start finds out that the node runs.
#
# Two locks, both the kernel's (flock), so that no death can leave one behind: `lock` is the supervisor's, and
# `run/alive` is inherited by every process it starts, so that it is free when the last of them is gone. Whoever holds
# both may remove any socket that lies there. A process id in a file is only for people to read.
import fcntl
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ONLY_ITS_OWNER: Final = 0o700
LONGEST_SOCKET_PATH: Final = 107  # bytes (unix(7))
DYING: Final = 5.0  # seconds that the processes of a former supervisor, which the kernel kills, may take to be gone
LOOK_AGAIN: Final = 0.02  # seconds; a lock tells nobody when it is free in time
LOOKED_AT: Final = 1.0  # seconds that somebody, on a busy machine, may hold the lock who only looks whether it is held
NOBODYS: Final = frozenset({"lost+found", "lock"})  # what a new file system has in it, and a start that failed


class FolderError(Exception):
    """The folder cannot be used. Its text is one sentence for the user."""


def base_folder() -> Path:
    """Where the folders of nodes are unless `node.folder` says otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/weir")
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "weir"


class NodeFolder:
    def __init__(self, name: str, folder: str = "") -> None:
        """*folder* as `node.folder` has it: "" is the usual one. Nothing is made or opened yet."""
        self.name = name
        self.path = Path(folder).absolute() if folder else base_folder() / name
        self.control = self.path / "control.sock"
        self.log = self.path / "log" / "weir.log"
        self.run = self.path / "run"
        self._lock: int | None = None
        self.alive: int | None = None  # the descriptor that processes of the node inherit

    def take(self) -> None:
        """Make it ours, and what is missing in it. FolderError: it is another's, or cannot be used."""
        try:
            self._take()
        except OSError as error:
            self._let_go()
            raise FolderError(f"Cannot use the folder {error.filename or self.path}: {error.strerror}.") from None
        except FolderError:
            self._let_go()
            raise

    def _take(self) -> None:
        self._check_length()
        self.path.mkdir(ONLY_ITS_OWNER, parents=True, exist_ok=True)
        self._check_owner()
        if self.path.stat().st_mode & 0o077:
            os.chmod(self.path, ONLY_ITS_OWNER)
        self._lock = _locked(self.path / "lock", LOOKED_AT)
        if self._lock is None:
            raise FolderError(self._is_running())
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        (self.path / "node").write_text(f"{self.name}\n")
        for part in (self.run, self.log.parent, self.path / "redis"):
            part.mkdir(ONLY_ITS_OWNER, exist_ok=True)
        self.alive = _locked(self.run / "alive", DYING)
        if self.alive is None:
            raise FolderError(f"Processes of a former run of the node {self.name} are still there, in {self.path}.")
        for left in (self.control, *self.run.iterdir()):  # by a supervisor that was killed
            if left.is_socket():
                left.unlink()

    def give_back(self) -> None:
        """Others may have it; what it holds stays."""
        if self._is_still_ours():
            self.control.unlink(missing_ok=True)
        self._let_go()

    def _is_still_ours(self) -> bool:
        """Nobody removed the folder while we ran, and perhaps began another node in its place."""
        assert self._lock is not None
        try:
            return os.path.samestat((self.path / "lock").stat(), os.fstat(self._lock))
        except OSError:
            return False

    def _let_go(self) -> None:
        for descriptor in (self.alive, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self.alive = self._lock = None

    @property
    def options(self) -> str:
        """How a command names this node."""
        if self.path == base_folder() / self.name:
            return f"--name {self.name}"
        return f"--folder {shlex.quote(str(self.path))}"

    def running(self) -> int | None:
        """The process id of its supervisor; None if none runs. PermissionError."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).strip()
            return int(text) if text.isdigit() else 0
        finally:
            os.close(descriptor)
        return None

    def _check_length(self) -> None:
        if len(os.fsencode(self.control)) > LONGEST_SOCKET_PATH:
            raise FolderError(
                f"The folder {self.path} has too long a name for the sockets in it "
                f"(over {LONGEST_SOCKET_PATH} bytes): name a shorter node.folder."
            )

    def _check_owner(self) -> None:
        """See that it is this node's, or nobody's and empty."""
        try:
            owner = (self.path / "node").read_text().strip()
        except FileNotFoundError:
            if {one.name for one in self.path.iterdir()} - NOBODYS:
                raise FolderError(
                    f"The folder {self.path} is not a node's and not empty: name another as node.folder."
                ) from None
            return
        if owner != self.name:
            raise FolderError(
                f"The folder {self.path} is that of the node {owner}: name another as node.folder, or --name {owner}."
            )

    def _is_running(self) -> str:
        pid = (self.path / "lock").read_text().strip()
        return (
            f"The node {self.name} runs already (process {pid or 'unknown'}): "
            f"`weir status {self.options}` shows it, `weir stop {self.options}` ends it, "
            f"and another --name starts one beside it."
        )


def _locked(path: Path, patience: float) -> int | None:
    """A descriptor of *path* with its lock; None if others have it for more than *patience* seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(LOOK_AGAIN)


def folders() -> Iterator[NodeFolder]:
    """Those of all nodes that use the usual place."""
    try:
        found = sorted(one for one in base_folder().iterdir() if (one / "node").is_file())
    except OSError:
        return
    for one in found:
        yield NodeFolder(one.name)
