# deploy/kafka/server.py: what it says where something is missing, and that its server can be killed and started again.
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import ROOT
from tests.kafka_servers import HOST, KafkaServer, free_port, shared_kafka
from tests.tools.faults.durable.proxy import Proxy

SCRIPT: Final = ROOT / "deploy" / "kafka" / "server.py"
PATIENCE: Final = 60.0  # seconds
OLD_JAVA: Final = """#!/bin/sh
echo 'openjdk version "11.0.2" 2019-01-15' >&2
"""


def run(tmp_path: Path, **programs: str) -> "subprocess.CompletedProcess[str]":
    """Run the command where only *programs* are on PATH, and nothing is in the cache."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, text in programs.items():
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    environment = {"PATH": str(binaries), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), "--port", "0"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("programs", "sentence"),
    [
        ({}, "Kafka needs Java 17 or newer: install it"),
        ({"java": OLD_JAVA}, "is not: set JAVA_HOME to one that is."),
        (
            {"java": OLD_JAVA.replace("11", "21")},
            "come through Maven, which is not on PATH: install the package maven.",
        ),
        ({"java": OLD_JAVA.replace("11", "21"), "mvn": "#!/bin/sh\necho no such artifact; exit 1"}, "no such artifact"),
    ],
)
def test_what_is_missing_is_one_sentence(tmp_path: Path, programs: dict[str, str], sentence: str) -> None:
    """A fresh clone would show a traceback, or nothing that one could act on."""
    ran = run(tmp_path, **programs)

    assert 1 == ran.returncode
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr


def test_jars_that_were_copied_in_part_are_not_used(tmp_path: Path) -> None:
    """A copy that Maven did not finish would be taken for Kafka until somebody empties the cache."""
    half = "#!/bin/sh\nfor one; do case $one in -DoutputDirectory=*) d=${one#*=}; esac; done\n"
    half += "/bin/mkdir -p $d; echo >$d/half.jar; exit 1\n"

    run(tmp_path, java=OLD_JAVA.replace("11", "21"), mvn=half)

    assert [] == [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".jar"]


@pytest.mark.nightly
def test_a_server_ends_with_what_started_it(tmp_path: Path) -> None:
    """A run of tests that is killed would leave a Java of 250 MB behind."""
    command = [sys.executable, str(SCRIPT), "--port", "0", "--folder", str(tmp_path)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    with started.stdout:
        line = started.stdout.readline()
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    server = os.pidfd_open(int(children[0]))
    started.send_signal(signal.SIGKILL)
    started.wait(PATIENCE)
    ended, _, _ = select.select([server], [], [], PATIENCE)
    os.close(server)

    assert "serves at 127.0.0.1:" in line
    assert [server] == ended


@pytest.mark.nightly
def test_the_server_of_a_run_ends_with_its_last_user(tmp_path: Path) -> None:
    """Each process of a run would start a Java of its own, or leave one behind; or another process lose its server."""
    folder = tmp_path / "kafka"
    with shared_kafka(folder) as first:
        with shared_kafka(folder) as second:
            host, port = second.address.split(":")
            connection = socket.create_connection((host, int(port)))
        with shared_kafka(folder) as third:
            pass
    with connection:
        connection.settimeout(PATIENCE)
        end = connection.recv(1)
    with shared_kafka(folder) as another:
        pass

    assert first == second == third != another
    assert b"" == end


@pytest.mark.nightly
def test_it_serves_again_at_the_same_port_after_kill(tmp_path: Path) -> None:
    """Each fault of Kafka would take half a minute, or give clients another server."""
    from kafka import KafkaAdminClient

    port = free_port()
    server: Any = KafkaServer(tmp_path, advertised=(HOST, port))
    proxy = Proxy((HOST, port), (HOST, server.port))
    try:
        server.start()
        with KafkaAdminClient(bootstrap_servers=server.address) as admin:
            admin.create_topics({"kept": {"num_partitions": 2}})
        server.kill()
        server.start()
        with KafkaAdminClient(bootstrap_servers=f"{HOST}:{server.port}") as admin:
            admin.wait_for_topics(["kept"], PATIENCE * 1000)
        assert proxy.passed > 0  # clients come through the proxy, whichever address they begin with
    finally:
        proxy.close()
        server.kill()
    assert server.process.poll() is not None
