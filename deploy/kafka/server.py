# One Apache Kafka on this machine, for try-outs and tests: `make kafka`, or python deploy/kafka/server.py --help
#
# It is Apache's own server in KRaft mode, one process that is broker and controller, on loopback. Its jars (44 MB) come
# through Maven, once, into the cache of the user; Java 17 or newer runs them. It is small (256 MB, 3 to 4 s until it
# serves), ends with the process that started it, and is nothing to keep data in: one replica, and no fsync.
#
# Java compiles with its quick compiler only: the other one occupies a core for a minute, which a test has no use for.
# A benchmark of Kafka's own cost wants `quick=False`.
import argparse
import os
import random
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

HERE: Final = Path(__file__).resolve().parent
DIE_WITH_PARENT: Final = HERE.parent.parent / "broker" / "control" / "die_with_parent.py"
MAVEN: Final = runpy.run_path(str(HERE.parent.parent / "analytics" / "maven.py"))
POM: Final = HERE / "pom.xml"
HOST: Final = "127.0.0.1"
PORT: Final = 9092  # Kafka's usual one
PORTS: Final = (20_000, 30_000)  # below the range from which the kernel takes the ports of outgoing connections
JAVA: Final = 17  # the oldest version that Kafka 4 supports
JAVA_TIMEOUT: Final = 60.0  # seconds for `java -version`
PATIENCE: Final = 120.0  # seconds until it serves, which takes 3 to 4 on a machine that is not busy
STOP: Final = 20.0  # seconds from SIGTERM to SIGKILL
SERVES: Final = "Kafka Server started"  # in its log
LAST_LINES: Final = 20  # of its log, for an error
HEAP: Final = "256m"
QUICK_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
# The log says little, but that it serves.
LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
# Topics are made by who needs them.
SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "CLIENT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "2",
}
# After kill -9 the controller waits for the end of the session of the former broker, 9 s by default, so the session is
# short. Retention is looked at each second, and what it deletes goes at once. With a thousand topics that is most of
# what an idle server costs.
QUICK_SETTINGS: Final = {
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "0",
}


class KafkaError(Exception):
    """Kafka cannot be started; the words say what to do."""


def java() -> str:
    """Path of a Java that is new enough. KafkaError."""
    home = os.environ.get("JAVA_HOME")
    binary = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if binary is None or not os.access(binary, os.X_OK):
        raise KafkaError(f"Kafka needs Java {JAVA} or newer: install it (openjdk-17-jre-headless) or set JAVA_HOME.")
    ran = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT)
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    if found is None or int(found[1]) < JAVA:
        raise KafkaError(f"Kafka needs Java {JAVA} or newer, and {binary} is not: set JAVA_HOME to one that is.")
    return binary


def version() -> str:
    """The version of Kafka that pom.xml asks for."""
    found: str = MAVEN["version"](POM, "kafka_2.13")
    return found


def cache() -> Path:
    """The folder of the user in which the jars stay."""
    folder: Path = MAVEN["cache"](f"kafka-{version()}")
    return folder


def jars() -> Path:
    """The folder with the jars; Maven copies them when they are missing. KafkaError."""
    try:
        return Path(MAVEN["copied"](POM, cache(), f"Apache Kafka {version()}"))
    except MAVEN["MavenError"] as error:
        raise KafkaError(str(error)) from None


def free_port(ports: tuple[int, int] = PORTS) -> int:
    """A TCP port of loopback that nobody listens on, from the first of *ports* up to, but not including, the second.

    Another process may take it before the caller does; that is rare, and the caller cannot listen on it then.
    """
    while True:
        port = random.randrange(*ports)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port


class KafkaServer:
    """A server with its data in *folder*. It is stopped, killed and started again at the same port."""

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        advertised: tuple[str, int] | None = None,
        *,
        quick: bool = True,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """*port* 0: a free one. *advertised*: where clients are told to connect to, such as a proxy. KafkaError.

        *quick*: it starts, and finds that it was killed, in the shortest time; it needs more of a processor then.
        *more*: further settings of the server.
        """
        self.folder = folder
        self.port = port or free_port()
        self.address = f"{HOST}:{self.port}" if advertised is None else f"{advertised[0]}:{advertised[1]}"
        self.process: subprocess.Popen[bytes] | None = None
        self._log = folder / "kafka.log"
        self._java = [java(), *(QUICK_START if quick else ()), f"-Xmx{HEAP}", *LOGGING, "-cp", f"{jars()}/*"]
        self._settings = {**SETTINGS, **(QUICK_SETTINGS if quick else {}), **more}
        self._properties = folder / "server.properties"
        self._prepare(free_port())

    def start(self, wait: Callable[[], object] = lambda: time.sleep(0.02), patience: float = PATIENCE) -> None:
        """Start it with its data, and return when it serves, within *patience* seconds. KafkaError.

        *wait* is called between two looks at its log: no event tells that another process has written.
        """
        command = [sys.executable, "-I", "-S", str(DIE_WITH_PARENT), str(os.getpid()), *self._java]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for who started it, and that stops it
            )
        try:
            deadline = time.monotonic() + patience
            while SERVES not in (text := self._log.read_text(errors="replace")):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise KafkaError("Kafka does not serve:\n" + "\n".join(text.splitlines()[-LAST_LINES:]))
                wait()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Have it end in order, or end it."""
        if self.process is not None:
            self.process.terminate()
            self.go_on()
            try:
                self.process.wait(STOP)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL, also of one that is paused."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        """SIGSTOP: the kernel accepts connections, and nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _prepare(self, controller_port: int) -> None:
        """Write the configuration, and format the folder if that has not been done."""
        data = self.folder / "data"
        settings = {
            **self._settings,
            "listeners": f"CLIENT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"CLIENT://{self.address}",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "log.dirs": str(data),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if (data / "meta.properties").exists():
            return
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if cluster.startswith("-"):  # it would be taken for an option
            cluster = f"A{cluster[1:]}"
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if ran.returncode:
            raise KafkaError(f"Kafka's folder could not be made:\n{(ran.stdout + ran.stderr).strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="One Apache Kafka on loopback, in the foreground, for try-outs.")
    parser.add_argument("--port", type=int, default=PORT, help=f"TCP port on {HOST} (default: {PORT}; 0: a free one)")
    parser.add_argument("--folder", type=Path, help="where its data stays (default: none is kept)")
    parser.add_argument("--fetch", action="store_true", help="only have Maven get what is missing")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="weir-kafka-") as temporary:
        try:
            if options.fetch:
                java()
                jars()
                return 0
            server = KafkaServer(options.folder or Path(temporary), options.port)
            server.start()
        except KafkaError as error:
            print(error, file=sys.stderr)
            return 1
        try:
            kept = options.folder or "nothing is kept"
            print(f"Apache Kafka {version()} serves at {server.address} (data: {kept}). Ctrl-C ends it.", flush=True)
            assert server.process is not None
            print(f"Kafka has ended with code {server.process.wait()}.", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
