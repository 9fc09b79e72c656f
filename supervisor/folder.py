# The folder of a node: what is in it, and how a second start notices that the node runs.
#
# Two files are locked with flock(), which the kernel releases after any death. `lock` belongs to the supervisor.
# `run/alive` is inherited by every process of the node, so it is free when the last of them has ended. A process that
# holds both locks may remove any socket in the folder. The process id in `lock` is for people; no code relies on it.
#
# Who can write to the folder can have the node write anywhere, and read what clients send. So the folder belongs to the
# user of the node (root does not use the folder of another user), and files in it are opened without following links.
import fcntl
import os
import pwd
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ONLY_ITS_OWNER: Final = 0o700
WRITABLE_BY_OTHERS: Final = 0o022
LONGEST_SOCKET_PATH: Final = 107  # bytes (unix(7))
DYING: Final = 5.0  # seconds that the processes of a killed supervisor, which the kernel kills as well, may take to end
RETRY: Final = 0.02  # seconds between two attempts; flock() has no timeout
EXAMINED: Final = 1.0  # seconds that `running()` of another process may hold the lock, on a busy machine
EMPTY: Final = frozenset({"lost+found", "lock"})  # left by a new file system and by a failed start; no data of others


class FolderError(Exception):
    """The folder cannot be used. The text is one sentence for the user."""


def base_folder() -> Path:
    """The folder that contains the nodes' folders, unless `node.folder` names another."""
    if os.geteuid() == 0:
        return Path("/var/lib/weir")
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "weir"


class NodeFolder:
    def __init__(self, name: str, folder: str = "") -> None:
        """*folder*: the setting `node.folder`; "": the default. Nothing is made or opened yet."""
        self.name = name
        self.path = Path(folder).absolute() if folder else base_folder() / name
        self.control = self.path / "control.sock"
        self.log = self.path / "log" / "weir.log"
        self.run = self.path / "run"
        self._lock: int | None = None
        self.alive: int | None = None  # the locked descriptor that all processes of the node inherit

    def take(self) -> None:
        """Lock the folder and make what is missing in it. FolderError: it is in use, or cannot be used."""
        try:
            self._take()
        except OSError as error:
            self._unlock()
            raise FolderError(f"Cannot use the folder {error.filename or self.path}: {error.strerror}.") from None
        except FolderError:
            self._unlock()
            raise

    def _take(self) -> None:
        self._check_path()
        self.path.mkdir(ONLY_ITS_OWNER, parents=True, exist_ok=True)
        self._check_rights()
        self._check_owner()
        if self.path.stat().st_mode & 0o077:
            os.chmod(self.path, ONLY_ITS_OWNER)
        self._lock = _locked(self.path / "lock", EXAMINED)
        if self._lock is None:
            raise FolderError(self._is_running())
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        _write_here(self.path / "node", f"{self.name}\n")
        for part in (self.run, self.log.parent, self.path / "redis"):
            part.mkdir(ONLY_ITS_OWNER, exist_ok=True)
            self._check_rights_of(part)
        self.alive = _locked(self.run / "alive", DYING)
        if self.alive is None:
            raise FolderError(f"Processes of a former run of the node {self.name} still use the folder {self.path}.")
        for left in (self.control, *self.run.iterdir()):  # by a killed supervisor
            if left.is_socket():
                left.unlink()

    def release(self) -> None:
        """Unlock the folder; its data stays."""
        if self._is_the_locked_one():
            self.control.unlink(missing_ok=True)
        self._unlock()

    def _is_the_locked_one(self) -> bool:
        """Whether the folder was not removed, and perhaps made anew by another node, while this node ran."""
        assert self._lock is not None
        try:
            return os.path.samestat((self.path / "lock").stat(), os.fstat(self._lock))
        except OSError:
            return False

    def _unlock(self) -> None:
        for descriptor in (self.alive, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self.alive = self._lock = None

    @property
    def options(self) -> str:
        """The command-line options that name this node."""
        if self.path == base_folder() / self.name:
            return f"--name {self.name}"
        return f"--folder {shlex.quote(str(self.path))}"

    def running(self) -> int | None:
        """The process id of the node's supervisor; 0: unknown, None: the node does not run. PermissionError."""
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

    def _check_path(self) -> None:
        try:
            str(self.path).encode()
        except UnicodeEncodeError:  # configuration files and log lines have it, and are UTF-8
            raise FolderError(
                f"The path of the folder {os.fsencode(self.path)!r} is not UTF-8: set node.folder to another one."
            ) from None
        if len(os.fsencode(self.control)) > LONGEST_SOCKET_PATH:
            raise FolderError(
                f"The path of the folder {self.path} is too long for the sockets in it "
                f"(over {LONGEST_SOCKET_PATH} bytes): set node.folder to a shorter one."
            )

    def _check_rights(self) -> None:
        """FolderError: another user could change the folder, or could have."""
        self._check_rights_of(self.path)
        if self.path.stat().st_mode & WRITABLE_BY_OTHERS and {one.name for one in self.path.iterdir()} - EMPTY:
            raise FolderError(
                f"Other users can write to the folder {self.path}, and may have put files there: look at them, then "
                f"use `chmod 700 {shlex.quote(str(self.path))}`, or set node.folder to another one."
            )
        for file in (self.path / "lock", self.path / "node", self.run / "alive", self.log):
            if file.is_symlink():
                raise FolderError(f"{file} is a symbolic link: remove it, as Weir writes to this file.")

    def _check_rights_of(self, folder: Path) -> None:
        """FolderError: *folder* belongs to another user, or another user has put a link there."""
        me = os.geteuid()
        owner = folder.stat().st_uid
        if owner != me:
            raise FolderError(
                f"The folder {folder} belongs to the user {_user(owner)}, and this process runs as {_user(me)}: "
                "start the node as the owner of its folder, or set node.folder to another one."
            )
        if folder.is_symlink() and folder.lstat().st_uid not in (0, me):
            raise FolderError(f"{folder} is a symbolic link of the user {_user(folder.lstat().st_uid)}: remove it.")

    def _check_owner(self) -> None:
        """FolderError: the folder belongs to another node, or holds other files."""
        try:
            owner = (self.path / "node").read_text().strip()
        except FileNotFoundError:
            if {one.name for one in self.path.iterdir()} - EMPTY:
                raise FolderError(
                    f"The folder {self.path} is not empty and belongs to no node: set node.folder to another one."
                ) from None
            return
        if owner != self.name:
            raise FolderError(
                f"The folder {self.path} belongs to the node {owner}: "
                f"set node.folder to another one, or use --name {owner}."
            )

    def _is_running(self) -> str:
        pid = (self.path / "lock").read_text().strip()
        return (
            f"The node {self.name} runs already (process {pid or 'unknown'}): "
            f"`weir status {self.options}` shows it, `weir stop {self.options}` stops it, "
            f"and another --name starts a second node."
        )


def _locked(path: Path, timeout: float) -> int | None:
    """Lock *path*: its descriptor; None if another process holds the lock for more than *timeout* seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(RETRY)


def _write_here(path: Path, text: str) -> None:
    """Write the file *path*, which is no link."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"with the number {number}"


def folders() -> Iterator[NodeFolder]:
    """The folders of all nodes in the default place."""
    try:
        found = sorted(one for one in base_folder().iterdir() if (one / "node").is_file())
    except OSError:
        return
    for one in found:
        yield NodeFolder(one.name)
