# The URL of --redis, and the sentences about a Redis that cannot be used.
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from analytics.connecting import connect, with_files
from broker.config.schema import Redis
from broker.store.redis.address import from_parts
from supervisor import redis_address
from supervisor.redis_address import check_settings, find_configured, find_redis, url_with_password
from supervisor.redis_server import RedisUnusable
from tests.redis_servers import HOST, PATIENCE, SERVERS, RunningRedis, free_port

StartRedis = Callable[..., RunningRedis]


pytestmark = pytest.mark.system  # real servers


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """A function that starts a server; it is ended after the test."""
    started: list[RunningRedis] = []

    def start(more: str = "", port: int = 0) -> RunningRedis:
        if not SERVERS:
            pytest.skip("there is no redis-server")
        started.append(RunningRedis(SERVERS[-1], tmp_path / f"redis{len(started)}", more, port))
        return started[-1]

    yield start
    for one in started:
        one.end()


@contextmanager
def sentinel(folder: Path, primary: int, more: str = "") -> Iterator[int]:
    """A sentinel of the server at port *primary*, which it calls weir. *more*: lines of its configuration."""
    port, config = free_port(), folder / "sentinel.conf"
    config.write_text(f"port {port}\nbind {HOST}\ndir {folder}\nsentinel monitor weir {HOST} {primary} 1\n{more}")
    process = subprocess.Popen([SERVERS[-1].path, config, "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection((HOST, port)).close()
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.02)  # no event tells when another process listens
        yield port
    finally:
        process.kill()
        process.wait()


def refusal(url: str) -> str:
    with pytest.raises(RedisUnusable) as refused:
        find_redis(url)
    return str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:6379",
        "http://localhost",
        "redis://",
        "redis://:6379",
        "redis://a,b",
        "redis://a:port",
        "redis://a:70000",
        "redis://a/db",
        "redis://[::1",
        "rediss://",
        "rediss://a,b",
        "rediss://a?ssl_cert_reqs=none",
        "unix://",
        "unix://relative/path",
        "unix:///a?color=red",
        "unix:///a?db=x",
        "redis+sentinel://a:26379",
        "redis+sentinel://a:26379/",
        "redis+sentinel:///service",
        "redis+sentinel://a:x/service",
    ],
)
def test_a_malformed_url_is_answered_with_the_valid_forms(url: str) -> None:
    """A typing error would be looked up, or end in a traceback."""
    with pytest.raises(RedisUnusable) as refused:
        check_settings(Redis(url=url))

    assert "redis+sentinel://[USER:PASSWORD@]HOST" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["redis://u:p@127.0.0.1/1", "rediss://u:p@host:1/2", "unix://:p%20q@/tmp/x?db=2", "redis+sentinel://a,b:1/s/3"],
)
def test_every_documented_form_is_accepted(url: str) -> None:
    """A form that the documentation names would be refused."""
    check_settings(Redis(url=url))


def test_an_address_arrives_at_the_worker_as_it_was_checked(start_redis: StartRedis) -> None:
    """Workers would connect to another server than the one that was checked."""
    port = free_port()
    server = start_redis("requirepass a:b@c/d\ndatabases 3\nuser weir on >p%q ~* &* +@all\n", port)
    urls = {
        f"redis://:a%3Ab%40c%2Fd@localhost:{port}/2": ["tcp", HOST, port, False, "", "a:b@c/d", 2],
        f"redis://weir:p%25q@{HOST}:{port}": ["tcp", HOST, port, False, "weir", "p%q", 0],
        f"unix://weir:p%25q@{server.socket}?db=1": ["unix", str(server.socket), "weir", "p%q", 1],
    }
    for url, parts in urls.items():
        found = find_redis(url)

        assert (parts, SERVERS[-1].version) == (found.address.parts(), found.version)
        assert parts == from_parts(found.address.parts()).parts()
        assert "p%q" not in str(found.address)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        ["udp", "a", 1],
        ["unix"],
        ["tcp", "a"],
        ["tcp", "a", "1"],
        ["unix", 7],
        ["unix", "/a", "", "", 0, 0],
        ["tcp", 1, 1],
    ],
)
def test_parts_that_are_no_address_are_refused(parts: list[object]) -> None:
    """A worker would try to connect to an invalid address."""
    with pytest.raises(ValueError, match="no address"):
        from_parts(parts)


def test_the_short_parts_are_an_address() -> None:
    """The embedded Redis would need a user and a password."""
    assert ["unix", "/a", "", "", 0] == from_parts(["unix", "/a"]).parts()
    assert ["tcp", HOST, 1, False, "", "", 0] == from_parts(["tcp", HOST, 1]).parts()


def test_refused_credentials_are_a_sentence_without_the_password(start_redis: StartRedis) -> None:
    """The node would start and not work, or the log would contain a password."""
    port = free_port()
    start_redis("requirepass secret\nuser weak on >weak ~* &* +ping +info +hello\n", port)
    for url in (f"redis://{HOST}:{port}", f"redis://:wrong@{HOST}:{port}", f"redis://nobody:wrong@{HOST}:{port}"):
        assert "does not accept the user name or the password" in refusal(url)
        assert "wrong" not in refusal(url)
    weak = refusal(f"redis://weak:weak@{HOST}:{port}")
    assert "denies its user a command that Weir needs" in weak
    assert ":weak@" not in weak


def test_a_password_for_a_server_without_one_is_a_sentence(start_redis: StartRedis) -> None:
    """Redis refuses the password, so no worker could connect."""
    port = free_port()
    start_redis("", port)

    assert "does not accept" in refusal(f"redis://somebody:x@{HOST}:{port}")


def test_a_database_that_does_not_exist_is_a_sentence(start_redis: StartRedis) -> None:
    """Workers could not connect."""
    port = free_port()
    start_redis("", port)

    assert "answered with an error" in refusal(f"redis://{HOST}:{port}/99")


def test_an_address_without_a_server_is_a_sentence(tmp_path: Path) -> None:
    """The user would see a traceback of redis-py."""
    assert "cannot be reached" in refusal(f"redis://{HOST}:{free_port()}")
    assert "cannot be reached" in refusal(f"unix://{tmp_path}/nobody.sock")
    assert "the host name cannot be resolved" in refusal("redis://no-such-host.invalid")


def test_a_server_that_does_not_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """`weir start` would hang."""
    monkeypatch.setattr(redis_address, "TIMEOUT", 0.1)
    with socket.create_server((HOST, 0)) as silent:
        assert "does not answer within 0.1 s" in refusal(f"redis://{HOST}:{silent.getsockname()[1]}")


def test_a_server_that_is_no_redis_is_a_sentence() -> None:
    """The wrong port would end in a traceback."""
    import threading

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server((HOST, 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        said = refusal(f"redis://{HOST}:{server.getsockname()[1]}")
        thread.join(PATIENCE)

    assert "cannot be" in said


def test_an_old_server_is_a_sentence(start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry's script would fail at the first client."""
    monkeypatch.setattr(redis_address, "OLDEST", (99, 0))
    server = start_redis()

    assert refusal(f"unix://{server.socket}").endswith("Weir needs 99.0 or newer.")


def test_a_replica_is_a_sentence(start_redis: StartRedis) -> None:
    """Each claim would be refused."""
    port = free_port()
    start_redis(f"replicaof {HOST} {free_port()}\n", port)

    assert "is a replica, which refuses writes" in refusal(f"redis://{HOST}:{port}")


def test_a_cluster_is_a_sentence(start_redis: StartRedis) -> None:
    """Half of all claims would be answered with MOVED."""
    port = free_port()
    start_redis("cluster-enabled yes\nappendonly no\n", port)

    assert "is a node of a Redis Cluster" in refusal(f"redis://{HOST}:{port}")


def test_settings_that_lose_sessions_are_remarked(start_redis: StartRedis) -> None:
    """Sessions would be lost, and no line in the log would say why."""
    server = start_redis("appendonly no\nmaxmemory 100mb\nmaxmemory-policy allkeys-lru\n")
    found = find_redis(f"unix://{server.socket}")

    assert ("maxmemory-policy is allkeys-lru", "the append-only file is off") == (
        *(remark.partition(", so ")[0] for remark in found.remarks),
    )
    assert () == find_redis(f"unix://{start_redis().socket}").remarks


def test_a_sentinel_names_the_master(start_redis: StartRedis, tmp_path: Path) -> None:
    """After a failover the node would use a server that is now a replica."""
    port = free_port()
    start_redis("", port)
    with sentinel(tmp_path, port) as watcher:
        found = find_redis(f"redis+sentinel://{HOST}:{free_port()},{HOST}:{watcher}/weir")
        unknown = refusal(f"redis+sentinel://{HOST}:{watcher}/other")

    assert ["tcp", HOST, port, False, "", "", 0] == found.address.parts()
    assert "knows a primary named 'other'" in unknown


def test_sentinels_have_a_password_of_their_own(start_redis: StartRedis, tmp_path: Path) -> None:
    """Sentinels with a password could not be used, or would get that of the server."""
    port, file, theirs = free_port(), tmp_path / "password", tmp_path / "sentinel-password"
    start_redis("requirepass data\n", port)
    file.write_text("data\n")
    theirs.write_text("watch %\n")
    more = 'requirepass "watch %"\nsentinel auth-pass weir data\n'
    with sentinel(tmp_path, port, more) as watcher:
        url = f"redis+sentinel://{HOST}:{watcher}/weir"
        settings = Redis(url=url, password_file=str(file), sentinel_password_file=str(theirs))
        job = with_files(url_with_password(url, str(file)), "", str(file), str(theirs))

        assert ["tcp", HOST, port, False, "", "data", 0] == find_configured(settings).address.parts()
        with connect(job) as client:
            assert client.ping()
        for wrong in (
            replace(settings, sentinel_password_file=""),
            replace(settings, sentinel_password_file=str(file)),
        ):
            with pytest.raises(RedisUnusable) as refused:
                find_configured(wrong)
            assert f"/weir: {redis_address.SENTINEL_PASSWORD}." in str(refused.value)
        theirs.write_text("another\n")
        with pytest.raises(RedisUnusable):  # read again
            find_configured(settings)
        with pytest.raises(redis.ConnectionError):
            connect(job)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://host", "redis://:a%3A%40%2F%25%20b@host"),
        ("redis://user@host:1/2", "redis://user:a%3A%40%2F%25%20b@host:1/2"),
        ("rediss://[::1]:1", "rediss://:a%3A%40%2F%25%20b@[::1]:1"),
        ("unix:///tmp/x?db=2", "unix://:a%3A%40%2F%25%20b@/tmp/x?db=2"),
        ("redis+sentinel://user@a,b:1/s/3", "redis+sentinel://user:a%3A%40%2F%25%20b@a,b:1/s/3"),
    ],
)
def test_the_password_of_a_file_is_that_of_the_url(tmp_path: Path, url: str, whole: str) -> None:
    """A password that is a part of a URL, too, would name another host, or be another one."""
    file = tmp_path / "password"
    file.write_text("a:@/% b\r\n")

    assert whole == url_with_password(url, str(file))
    assert url == url_with_password(url, "")
    check_settings(Redis(url=url, password_file=str(file)))


def test_a_password_file_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    """The node would ask for a file that is there, or use an empty password while the file is written."""
    empty, binary, missing = (tmp_path / name for name in ("empty", "binary", "missing"))
    empty.write_text("\n")
    binary.write_bytes(b"\xff")
    for file, why in (
        (empty, f"{empty} is empty."),
        (binary, f"cannot read {binary}: it is not UTF-8."),
        (missing, f"cannot read {missing}: No such file or directory."),
    ):
        with pytest.raises(RedisUnusable) as refused:
            check_settings(Redis(url="redis://user@host", password_file=str(file)))
        assert f"redis.password_file: {why}" == str(refused.value)
    with pytest.raises(RedisUnusable) as refused:
        check_settings(Redis(url="redis://user:secret@host", password_file=str(empty)))
    assert "has a password, and so has redis.password_file" in str(refused.value)
    assert "secret" not in str(refused.value)
