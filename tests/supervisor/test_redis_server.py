# Which server the embedded Redis is, and what its end means.
import os
import stat
from pathlib import Path

import pytest

from supervisor import redis_server
from supervisor.redis_server import RedisServer, RedisUnusable, configuration, explain, find_server, prepare

SERVER = RedisServer(Path("/usr/bin/redis-server"), (7, 0, 15))
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
    """The only folder on PATH; and no package holds a server."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    monkeypatch.setattr(redis_server, "WHEELS", ())
    return folder


def usable(folder: Path, server: RedisServer = SERVER, socket: Path | None = None) -> None:
    prepare(folder, socket or folder / "redis.sock", folder / "redis.conf", "port 0\n", server)


@pytest.mark.parametrize(
    ("name", "says", "version"),
    [
        ("redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1", (7, 0, 15)),
        ("valkey-server", "Valkey server v=8.1.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1", (8, 1, 1)),
        ("redis-server", "Redis server v=6.2.0 sha=00000000:0 malloc=libc bits=64 build=1", (6, 2, 0)),
    ],
)
def test_a_server_on_path_is_found(path: Path, name: str, says: str, version: tuple[int, ...]) -> None:
    """Who has Redis installed would be told to install it."""
    program = pretend(path, name, says)

    assert RedisServer(program, version) == find_server()


def test_the_first_that_is_new_enough_is_taken(path: Path) -> None:
    """An old server would be started, or hide a good one."""
    pretend(path, "valkey-server", "not this one")
    pretend(path, "redis-server", "Redis server v=5.0.14 sha=0")
    with pytest.raises(RedisUnusable) as refused:
        find_server()

    assert f"6.2 or newer, and there is only {path}/redis-server (5.0.14): install" in str(refused.value)


def test_without_a_server_the_user_hears_what_to_install(path: Path) -> None:
    """`weir start` on a bare machine would end in a traceback."""
    with pytest.raises(RedisUnusable) as refused:
        find_server()

    assert (
        "Weir needs Redis or Valkey 6.2 or newer: install the package valkey-server or redis-server, "
        "or weirmq[embedded] with pip, or name a server with --redis URL."
    ) == str(refused.value)


def test_a_package_serves_where_path_does_not(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The extra `embedded` would be installed for nothing."""
    (tmp_path / "packages" / "a_wheel").mkdir(parents=True)
    program = pretend(tmp_path / "packages" / "a_wheel" / "bin", "redis-server", "Redis server v=8.2.3 sha=0")
    monkeypatch.setattr(redis_server, "WHEELS", ("no_such_wheel", "a_wheel"))
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))

    assert RedisServer(program, (8, 2, 3)) == find_server()


def test_paths_are_quoted() -> None:
    """A folder with a space in its name would be read as two arguments."""
    text = configuration(Path('/a "b\\ c'), Path("/a b/redis.sock"), 1000)

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
    """Redis would cut the path off, or say something about a bind."""
    socket = tmp_path / ("x" * 107)
    with pytest.raises(RedisUnusable) as refused:
        usable(tmp_path, socket=socket)

    assert "longer than the 107 bytes" in str(refused.value)
    assert "node.folder" in str(refused.value)
    longest = Path(f"{tmp_path}/{'x' * (107 - len(os.fsencode(tmp_path)) - 1)}")
    usable(tmp_path, socket=longest)


def test_an_old_server_does_not_start_beside_data_that_it_cannot_see(tmp_path: Path) -> None:
    """Redis 6.2 looks for a file where 7 keeps a folder: it would serve, and have forgotten everything."""
    (tmp_path / "appendonlydir").mkdir()
    with pytest.raises(RedisUnusable) as refused:
        usable(tmp_path, OLD)

    assert f"The data in {tmp_path} was written by a newer server than /usr/bin/redis-server (6.2.14)" in str(
        refused.value
    )
    usable(tmp_path, SERVER)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("# Can't handle RDB format version 12", "written by a newer server than"),
        ("# Wrong signature trying to load DB from file", "is damaged: `redis-check-aof --fix"),
        ("# Can't open or create append-only dir /x: No space left on device", "no space is left on the disk"),
        ("# Can't open or create append-only dir /x: Permission denied", "to the user of Weir"),
        ("# Something nobody has thought of", "it said last: 1:M # Something nobody has thought of"),
    ],
)
def test_last_words_become_a_sentence(line: str, said: str) -> None:
    """Users would have to read Redis' log."""
    sentence = explain(["1:M * Ready to accept connections", f"1:M {line}", ""], Path("/x"), SERVER)

    assert said in sentence
    assert sentence.endswith(("." if "last" not in said else "of",))


def test_no_last_words_are_a_sentence_too() -> None:
    """A server that was killed says nothing."""
    assert explain([], Path("/x"), SERVER).endswith("it said last: nothing")
