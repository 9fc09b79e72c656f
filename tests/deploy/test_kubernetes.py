# deploy/kubernetes: the nodes of one broker as the pods of a StatefulSet.
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from broker.config.schema import Config
from broker.config.sources import DEFAULT_FILE
from broker.mqtt.packets import V5, ConnAck, Connect, Disconnect
from cli.nodes import LATE
from cli.passwords import set_password
from tests.conftest import ROOT
from tests.deploy.files import DOCKERFILE, KUBERNETES, USER, documents, listening, of_shell, options, settings
from tests.redis_servers import HOST, SYNCS_AT_ONCE, RunningRedis, free_port, replicate
from tests.system.nodes import Node
from tests.system.processes import packages, weir_environment
from tests.system.raw import RawClient

OLDEST: Final = "1.25"  # of Kubernetes: minReadySeconds of a StatefulSet is stable
KEYS: Final = "/etc/weir/keys/"
TEST_PASSWORD: Final = "Geheim:%/@ 1"
PATIENCE: Final = 30.0  # seconds
USE_ANOTHER_SERVER: Final = 0x9C


def objects() -> list[dict[str, Any]]:
    return [one for path in sorted(KUBERNETES.glob("*.yaml")) for one in documents(path)]


def named(kind: str, name: str = "weir") -> dict[str, Any]:
    (found,) = [one for one in objects() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    told: dict[str, Any] = named("StatefulSet")["spec"]["template"]["spec"]
    return told


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    return dict(found)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file in the ConfigMap."""
    (text,) = named("ConfigMap")["data"].values()
    path = tmp_path / "weir.toml"
    path.write_text(text)
    return path


@pytest.fixture
def config(file: Path) -> Config:
    return settings(file, {"WEIR_NODE__NAME": "weir-0"})


@pytest.mark.parametrize("version", [OLDEST, "latest"])
def test_each_object_follows_the_schema(version: str) -> None:
    """`kubectl apply` would refuse it, or drop a field that is misspelt."""
    validator = pytest.importorskip("kubernetes_validate")
    wanted = validator.latest_version() if version == "latest" else version
    found = objects()
    assert {"ConfigMap", "PodDisruptionBudget", "Service", "StatefulSet"} == {one["kind"] for one in found}
    for one in found:
        validator.validate(one, wanted, strict=True)


def test_objects_find_each_other(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """Clients would reach nobody, or all nodes would be stopped at once."""
    nodes = named("StatefulSet")["spec"]
    labels = nodes["template"]["metadata"]["labels"]
    ports = {one["name"] for one in container["ports"]}
    assert nodes["selector"]["matchLabels"] == labels
    assert named("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert named("Service", nodes["serviceName"])["spec"]["clusterIP"] == "None"
    for service in (one for one in objects() if one["kind"] == "Service"):
        assert service["spec"]["selector"] == labels
        assert {one["targetPort"] for one in service["spec"]["ports"]} <= ports
    (rule,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert rule["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
    volumes = {one["name"] for one in pod["volumes"]} | {
        one["metadata"]["name"] for one in nodes["volumeClaimTemplates"]
    }
    assert {one["name"] for one in container["volumeMounts"]} == volumes


def test_ports_are_those_that_the_node_listens_on(container: dict[str, Any], config: Config) -> None:
    """Probes would kill each node, or clients would be refused."""
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert {"mqtt": config.listeners.tcp.port, "admin": config.admin.port} == ports
    assert {"tcp": ports["mqtt"], "admin": ports["admin"]} == listening(config)
    for service in (one for one in objects() if one["kind"] == "Service"):
        assert all(one["port"] == ports[one["targetPort"]] for one in service["spec"]["ports"])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert "admin" == container[probe]["httpGet"]["port"]


def test_files_are_mounted_where_the_settings_say(
    pod: dict[str, Any], container: dict[str, Any], config: Config
) -> None:
    """The node would start with the defaults, or not at all."""
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert mounts[str(DEFAULT_FILE)]["subPath"] in named("ConfigMap")["data"]
    secret = next(one["secret"] for one in pod["volumes"] if one["name"] == mounts[KEYS.rstrip("/")]["name"])
    wanted = {config.access.password_file, config.redis.password_file, config.redis.key_file}
    assert all(one.startswith(KEYS) for one in wanted)
    readme = re.sub(r"\\\n\s+", "", (ROOT / "README.md").read_text())
    (made,) = re.findall(rf"kubectl create secret generic {secret['secretName']}( .*)", readme)
    assert wanted == {KEYS + key for key in re.findall(r"--from-file=([\w-]+)", made)}


def test_a_node_is_given_what_it_counts_on(pod: dict[str, Any], container: dict[str, Any], config: Config) -> None:
    """A node would have more workers than processors, or be refused its own folder, or an image that is not there."""
    assert container["resources"]["limits"]["cpu"] == str(config.node.workers)
    assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
    context = pod["securityContext"]
    assert (USER, USER, True) == (context["runAsUser"], context["fsGroup"], context["runAsNonRoot"])
    assert f"USER {USER}:{USER}" in DOCKERFILE.read_text()
    assert "OnRootMismatch" == context["fsGroupChangePolicy"]  # else the folder is made writable for the group
    assert pod["enableServiceLinks"] is False
    (name,) = container["env"]
    assert "WEIR_NODE__NAME" == name["name"] and "metadata.name" == name["valueFrom"]["fieldRef"]["fieldPath"]
    options(container["args"])


def test_a_pod_has_the_time_to_be_drained(pod: dict[str, Any], container: dict[str, Any], config: Config) -> None:
    """The node would be killed with its clients, or not be drained at all."""
    shell, flag, script = container["lifecycle"]["preStop"]["exec"]["command"]
    arguments = of_shell(script)
    given = options(arguments)

    assert ("sh", "-c", "drain") == (shell, flag, arguments[0])
    assert "$WEIR_NODE__NAME" in given.values()
    assert given["wait"] + config.drain.timeout + LATE <= pod["terminationGracePeriodSeconds"]


@pytest.fixture
def redis_of_the_pods(file: Path, start_redis: Callable[..., RunningRedis], tmp_path: Path) -> str:
    """The URL of a Redis as the nodes need it; the keys that *file* names are there from now on."""
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "redis-password").write_text(f"{TEST_PASSWORD}\n")
    (keys / "cluster-key").write_text("0123456789abcdef" * 2)
    set_password(keys / "passwords", "alice", b"secret", 1000, create=True)
    file.write_text(file.read_text().replace(KEYS, f"{keys}/"))
    server = start_redis(more=SYNCS_AT_ONCE, port=free_port())
    with server.client() as client:
        replicate(server, start_redis())
        client.execute_command("ACL", "SETUSER", "weir", "on", f">{TEST_PASSWORD}", "~*", "&*", "+@all")
    user = urlsplit(settings(file, {}).redis.url).username
    return f"redis://{user}@{HOST}:{server.address.port}"


@pytest.fixture
def pods(file: Path, config: Config, redis_of_the_pods: str, tmp_path: Path) -> Iterator[list[tuple[Node, int]]]:
    """Two nodes with the file, and the port of each for probes."""
    started = []
    for name in ("weir-0", "weir-1"):
        (tmp_path / name).mkdir()
        port = free_port()
        given: dict[str, Any] = {"--config": file, "node__name": name, "redis__url": redis_of_the_pods}
        given |= {"admin__host": HOST, "admin__port": port}
        started.append((Node(tmp_path / name, config.node.workers, **given), port))
    yield started
    for node, _ in started:
        node.end()


def answer(port: int, path: str) -> int:
    """The status of the answer to a probe."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=PATIENCE) as told:
            return int(told.status)
    except urllib.error.HTTPError as error:
        return error.code


def connected(node: Node) -> RawClient:
    client = node.stranger()
    client.send(Connect(V5, "client", user_name="alice", password=b"secret"))
    assert 0 == client.expect(ConnAck).code
    return client


def run_hook(container: dict[str, Any], node: Node, folder: Path) -> int:
    """The exit code of the preStop hook of *node*, in the environment of its container."""
    weir = folder / "weir"
    weir.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    weir.chmod(0o755)
    environment = weir_environment(packages()) | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"WEIR_NODE__NAME": "weir-0", "WEIR_NODE__FOLDER": str(node.folder / "node")}
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, timeout=2 * PATIENCE).returncode


@pytest.mark.system
@pytest.mark.slow
def test_nodes_start_with_the_file_and_are_drained(
    pods: list[tuple[Node, int]], container: dict[str, Any], tmp_path: Path
) -> None:
    """No pod would ever become ready or let a client in; or clients would stay until the node is gone."""
    (node, port), (other, _) = pods
    paths = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [200, 200, 200] == [answer(port, path) for path in paths]
    client = connected(node)

    assert 0 == run_hook(container, node, tmp_path)

    assert [200, 200, 503] == [answer(port, path) for path in paths]
    assert USE_ANOTHER_SERVER == client.expect(Disconnect).code
    connected(other)
