# What `ps` shows of commands whose arguments contain a password.
import json
import os
import secrets
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cli.hidden_arguments import ARGUMENTS, restored, without_secrets
from tests.cli.running import weir
from tests.conftest import ROOT
from tests.redis_servers import free_port

if TYPE_CHECKING:
    from tests.redis_servers import RunningRedis

HOST: Final = "127.0.0.1"
PATIENCE: Final = 60.0  # seconds for a command to connect


def shown_with(word: str) -> list[str]:
    """The command lines of all processes of this machine with *word*."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = one.read_bytes().decode(errors="replace")
        except OSError:
            continue  # the process has ended
        if word in line:
            found.append(line.replace("\0", " "))
    return found


def script(folder: Path) -> list[str]:
    """The command `weir` as pip installs it."""
    module, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["weir"].split(":")
    path = folder / "weir"
    path.write_text(
        f"import sys\nfrom {module} import {function}\nif __name__ == '__main__':\n    sys.exit({function}())\n"
    )
    return [str(path)]


@contextmanager
def connected(command: list[str], listener: socket.socket, word: str) -> Iterator["subprocess.Popen[bytes]"]:
    """*command* once it has sent *word* to *listener*, which replies nothing; it is killed afterwards."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, env=environment) as process:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(PATIENCE)
                sent = b""
                while word.encode() not in sent:
                    data = connection.recv(4096)
                    assert data, sent
                    sent += data
                yield process
        finally:
            process.kill()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as made:
        made.settimeout(PATIENCE)
        yield made


@pytest.mark.system
@pytest.mark.parametrize(
    "arguments",
    [
        ["start", "--set", "redis.url=redis://weir:{secret}@{host}", "--set", "node.folder={folder}/node"],
        ["start", "-sredis.url=redis://:{secret}@{host}", "--set", "node.folder={folder}/node"],
        ["dashboard", "--redis", "redis://weir:{secret}@{host}", "--folder", "{folder}/node"],
        ["analytics", "run", "--redis=redis://weir:{secret}@{host}", "--folder", "{folder}/node"],
        ["sub", "-h", "{host}", "-u", "weir", "-P", "{secret}", "a"],
        ["sub", "-h", "{host}", "-u", "weir", "-vP{secret}", "a"],
        ["pub", "-h", "{host}", "-u", "weir", "--password={secret}", "a", "text"],
        ["bench", "{host}", "-u", "weir", "--pw", "{secret}"],
    ],
    ids=" ".join,
)
def test_a_password_is_used_and_not_in_the_process_list(
    arguments: list[str], listener: socket.socket, tmp_path: Path
) -> None:
    """Every user of the machine could read the password of Redis or of a client with `ps`, as long as it runs."""
    secret = secrets.token_hex(8)
    host = f"{HOST}:{listener.getsockname()[1]}"
    given = [one.format(secret=secret, host=host, folder=tmp_path) for one in arguments]
    hidden = [one.format(secret="***", host=host, folder=tmp_path) for one in arguments]

    with connected(["-m", "cli", *given], listener, secret) as process:
        assert [] == shown_with(secret)
        assert [*["-m", "cli"], *hidden] == Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")[1:-1]


@pytest.mark.system
def test_the_installed_command_hides_a_password(listener: socket.socket, tmp_path: Path) -> None:
    """Only `python -m cli` would hide it, which nobody types."""
    secret = secrets.token_hex(8)
    host = f"{HOST}:{listener.getsockname()[1]}"
    command = [*script(tmp_path), "sub", "-h", host, "-u", "weir", "-P", secret, "a"]

    with connected(command, listener, secret):
        assert [] == shown_with(secret)


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Path]:
    """The folder of a node; the node is stopped after the test."""
    yield tmp_path / "node"
    weir("stop", "--folder", str(tmp_path / "node"))


@pytest.mark.system
def test_no_process_of_a_detached_node_shows_the_password_of_redis(
    start_redis: "Callable[..., RunningRedis]", stopped: Path
) -> None:
    """The supervisor or a worker would show in `ps` what `weir start --detach` got, for weeks."""
    secret, port = secrets.token_hex(8), free_port()
    start_redis(more=f"requirepass {secret}\n", port=port)
    settings = ["--set", f"node.folder={stopped}", "--set", f"redis.url=redis://:{secret}@{HOST}:{port}"]

    done = weir("start", "--detach", "--host", HOST, "--port", "0", *settings)

    assert 0 == done.returncode, done.stderr
    pid = int(done.stdout.split("(process ")[1].split(")")[0])
    assert f"redis.url=redis://:***@{HOST}:{port}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert [] == shown_with(secret)


def test_a_hidden_setting_keeps_its_source_and_its_priority() -> None:
    """A mistake would be looked for in the environment, and the file could override the command line."""
    url = "redis://weir:secret@127.0.0.1"
    done = weir("config", "show", "--json", "--set", f"redis.url={url}", WEIR_REDIS__URL="redis://10.0.0.1")

    assert {"value": "redis://weir:***@127.0.0.1", "source": "--set"} == json.loads(done.stdout)["redis.url"], done


def test_no_child_inherits_the_arguments() -> None:
    """A worker, or a command that a worker starts, would take the arguments of another one for its own."""
    program = "import os, sys\nfrom cli.hidden_arguments import hide_secrets\nhide_secrets()\nprint(sys.argv[1:], {})"
    command = [sys.executable, "-c", program.format(f"'{ARGUMENTS}' in os.environ"), "--pw", "secret"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)

    assert "['--pw', 'secret'] False\n" == done.stdout, done.stderr


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["start", "--port", "1883"], ["start", "--port", "1883"]),
        (["--redis", "redis://h:6379/1"], ["--redis", "redis://h:6379/1"]),
        (["--redis", "redis://user@h"], ["--redis", "redis://user@h"]),
        (["--redis", "redis://:a:b@c/d@h:1"], ["--redis", "redis://:***@h:1"]),
        (["redis+sentinel://u:p@h1:1,h2:2/name"], ["redis+sentinel://u:***@h1:1,h2:2/name"]),
        (["-P", "-P", "-P"], ["-P", "***", "-P"]),
        (["-PaPb"], ["-P***"]),
        (["-P"], ["-P"]),
        (["--pw", "one", "--password", "two"], ["--pw", "***", "--password", "***"]),
    ],
    ids=str,
)
def test_only_passwords_are_hidden(given: list[str], shown: list[str]) -> None:
    """The process list would show a part of a password, or no longer what a command does."""
    seen, environment = without_secrets(given)

    assert shown == seen
    assert (given != shown) == bool(environment)
    assert given == restored(seen, environment.get(ARGUMENTS, "{}"))


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"7": "x"}'])
def test_a_foreign_environment_changes_no_arguments(text: str) -> None:
    """A variable of that name from elsewhere would end each command with a traceback."""
    assert ["status"] == restored(["status"], text)
