# rediss://: what the supervisor checks, and what it tells the workers.
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from analytics.connecting import connect
from broker.config.schema import Redis
from broker.store.redis.address import from_parts
from supervisor.redis_address import check_settings, find_redis
from supervisor.redis_server import RedisUnusable
from tests.net.tls import Authority
from tests.redis_servers import HOST, PATIENCE, RunningRedis, free_port, server_with_tls, tls_lines

pytestmark = pytest.mark.system  # real servers


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start_tls(start_redis: Callable[..., RunningRedis], authority: Authority) -> Callable[..., int]:
    """A function that starts a server with TLS; it returns the port."""

    def start(more: str = "", clients: str = "no", **certificate: bool) -> int:
        server = server_with_tls()
        if server is None:
            pytest.skip("there is no redis-server with TLS")
        port = free_port()
        issued = authority.issue("localhost", **certificate)  # type: ignore[arg-type]
        start_redis(server, tls_lines(port, issued, authority.file, clients) + more)
        return port

    return start


def refusal(url: str, ca: str = "") -> str:
    with pytest.raises(RedisUnusable) as refused:
        find_redis(url, ca)
    return str(refused.value)


def test_workers_get_a_number_and_the_name(
    start_tls: Callable[..., int], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers would look up the name, or could not check the certificate for it, or would miss the authorities."""
    port = start_tls("databases 3\nrequirepass a:b\n")
    monkeypatch.chdir(Path(authority.file).parent)
    address = find_redis(f"rediss://:a%3Ab@localhost:{port}/2", Path(authority.file).name).address

    assert ["tcp", HOST, port, True, "", "a:b", 2, "localhost", authority.file] == address.parts()
    assert address.parts() == from_parts(address.parts()).parts()
    assert "a:b" not in str(address)


def test_an_untrusted_certificate_is_a_sentence(start_tls: Callable[..., int]) -> None:
    """The password would go to anybody, or the user would see an error of OpenSSL."""
    url = f"rediss://localhost:{start_tls()}"

    assert refusal(url).startswith(f"{url}: the certificate of the server is refused: ")


def test_a_certificate_for_another_name_is_a_sentence(start_tls: Callable[..., int], authority: Authority) -> None:
    """Each server of the same authority could pass for Redis."""
    url = f"rediss://{HOST}:{start_tls()}"
    said = refusal(url, authority.file)

    assert said.startswith(f"{url}: the certificate of the server is refused: ")
    assert HOST in said.removeprefix(url)


def test_an_expired_certificate_is_a_sentence(start_tls: Callable[..., int], authority: Authority) -> None:
    """A certificate whose key was given up long ago would be trusted."""
    said = refusal(f"rediss://localhost:{start_tls(expired=True)}", authority.file)

    assert said.endswith("the certificate of the server is refused: certificate has expired.")


def test_a_server_that_wants_a_certificate_is_a_sentence(start_tls: Callable[..., int], authority: Authority) -> None:
    """Redis asks clients for a certificate unless `tls-auth-clients` is no: the user could only guess."""
    said = refusal(f"rediss://localhost:{start_tls(clients='yes')}", authority.file)

    assert "certificate required" in said or "it may want a certificate" in said  # the alert may come too late


def test_a_server_without_tls_is_a_sentence(authority: Authority) -> None:
    """The port without TLS would end in a traceback."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"-ERR unknown command\r\n")

    with socket.create_server((HOST, 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        said = refusal(f"rediss://localhost:{server.getsockname()[1]}", authority.file)
        thread.join(PATIENCE)

    assert said.endswith(": TLS with the server fails: wrong version number.")


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    """The node would start, and the workers could not use Redis."""
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("text")
    for file, why in ((no_pem, "is not a PEM file of certificates"), (tmp_path / "none", "No such file or directory")):
        with pytest.raises(RedisUnusable) as refused:
            check_settings(Redis(url="rediss://localhost", ca=str(file)))
        assert f"redis.ca: {file}: {why}." == str(refused.value) == refusal("rediss://localhost:1", str(file))


@pytest.fixture
def sentinel_with_tls(start_tls: Callable[..., int], authority: Authority, tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The ports of a server and of a sentinel that names it "localhost". Both speak TLS alone."""
    port, watcher = start_tls(), free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port 0\ndir {tmp_path}\ntls-replication yes\n"
        f"{tls_lines(watcher, authority.issue('localhost'), authority.file)}"
        "sentinel resolve-hostnames yes\nsentinel announce-hostnames yes\n"
        f"sentinel monitor weir localhost {port} 1\n"
    )
    server = server_with_tls()
    assert server is not None
    process = subprocess.Popen([server.path, config, "--sentinel"], stdout=subprocess.DEVNULL)
    yield port, watcher
    process.kill()
    process.wait()


def test_sentinels_and_their_masters_are_reached_by_tls(
    sentinel_with_tls: tuple[int, int], authority: Authority
) -> None:
    """A node with sentinels would have to send its password, and all messages, for everybody to read."""
    port, watcher = sentinel_with_tls
    url, deadline = f"rediss+sentinel://localhost:{watcher}/weir", time.monotonic() + PATIENCE
    while True:
        try:
            found = find_redis(url, authority.file)
            break
        except RedisUnusable:
            assert time.monotonic() < deadline
            time.sleep(0.02)  # until it listens

    assert ["tcp", HOST, port, True, "", "", 0, "localhost", authority.file] == found.address.parts()
    with connect(f"{url}?{urlencode({'ssl_ca_certs': authority.file})}") as client:  # as the analysis does
        assert client.ping()
    for unknown in (f"rediss+sentinel://localhost:{watcher}/other", f"redis+sentinel://localhost:{watcher}/weir"):
        assert "no sentinel that can be reached knows a primary" in refusal(unknown, authority.file)
    assert "no sentinel that can be reached knows a primary" in refusal(url)  # an authority that is not trusted
