# deploy/compose: two nodes and all around them, for try-outs.
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from broker.config.schema import PROCESS
from cli.dashboard import PORT as DASHBOARD_PORT
from cli.nodes import LATE
from supervisor.redis_durability import durability_of, read_settings
from tests.deploy.files import COMPOSE, DEPLOY, documents, listening, of_shell, options, settings
from tests.kafka_servers import HOST, SERVER, KafkaServer, skip_without_java
from tests.redis_servers import SERVERS, RunningRedis, free_port
from tests.system.nodes import Node

CONFIG: Final = COMPOSE.with_name("weir.toml")
NODES: Final = ("n1", "n2")
PATIENCE: Final = 30.0  # seconds
SECONDS: Final = {"s": 1, "m": 60}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    (found,) = documents(COMPOSE)
    told: dict[str, Any] = found["services"]
    return told


def arguments(service: Mapping[str, Any]) -> list[str]:
    """Those of the command of weir that the container executes."""
    if "entrypoint" in service:
        return of_shell(service["command"][0])
    return list(service.get("command", ["start"]))


def seconds(duration: str) -> float:
    return float(duration[:-1]) * SECONDS[duration[-1]]


def test_the_file_follows_the_specification() -> None:
    """`docker compose` would refuse it, or leave out what it does not know."""
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True)

    assert 0 == done.returncode, done.stdout + done.stderr


def test_all_that_is_named_exists(services: dict[str, Any]) -> None:
    """A container would not start, or with an empty folder in place of a file."""
    (found,) = documents(COMPOSE)
    used = set()
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        for volume in service["volumes"]:
            source, _, _ = volume.partition(":")
            if source.startswith("."):
                assert (COMPOSE.parent / source).is_file(), volume
            else:
                used.add(source)
        if build := service.get("build"):
            assert (COMPOSE.parent / build["context"] / build["dockerfile"]).is_file()
    assert used == set(found["volumes"])


def test_the_commands_and_settings_are_weirs(services: dict[str, Any]) -> None:
    """A container would end at once, with a sentence in a log that nobody looks at."""
    ours = {name: service for name, service in services.items() if service["image"].startswith("weir")}
    assert {"n1", "n2", "dashboard", "analysis"} == set(ours)
    names = []
    for service in ours.values():
        options(arguments(service))
        config = settings(CONFIG, service.get("environment", {}))
        assert "./weir.toml:/etc/weir/weir.toml:ro" in service["volumes"]
        assert {config.redis.url, *config.kafka.hosts} == {"redis://valkey:6379", "kafka:9092"} and services["kafka"]
        names.append(config.node.name)
    assert ["n1", "n2", "weir", "weir"] == sorted(names)


def test_ports_are_those_that_weir_listens_on(services: dict[str, Any]) -> None:
    """A client would reach nothing; or a broker without passwords would be open to a network."""
    published = [port.rsplit(":", 2) for service in services.values() for port in service.get("ports", ())]
    assert {HOST} == {host for host, _, _ in published}
    assert len({outside for _, outside, _ in published}) == len(published)
    for name in NODES:
        ports = listening(settings(CONFIG, {}))
        inside = {int(port.rpartition(":")[2]) for port in services[name]["ports"]}
        assert {ports["tcp"], ports["ws"]} == inside
        assert f":{ports['admin']}/health/ready" in services[name]["healthcheck"]["test"][-1]
    given = options(arguments(services["dashboard"]))
    assert [f"{HOST}:{DASHBOARD_PORT}:{given['port']}"] == services["dashboard"]["ports"]
    assert "0.0.0.0" == given["host"] and given["token_file"]


def test_nodes_have_the_time_to_stop(services: dict[str, Any]) -> None:
    """A node would be killed while it hands over its sessions."""
    timeout = settings(CONFIG, {}).drain.timeout
    for name in NODES:
        assert seconds(services[name]["stop_grace_period"]) >= timeout + LATE


def test_prometheus_and_grafana_find_what_they_show(services: dict[str, Any]) -> None:
    """The board would be empty, and no alert would ever come."""
    (config,) = documents(COMPOSE.with_name("prometheus.yml"))
    (job,) = config["scrape_configs"]
    port = listening(settings(CONFIG, {}))["admin"]
    assert "weir" == job["job_name"]  # alerts.yml asks for it
    assert [{"targets": [f"{name}:{port}" for name in NODES]}] == job["static_configs"]
    mounted = {one.split(":")[1]: one.split(":")[0] for one in services["prometheus"]["volumes"]}
    assert [mounted[path] for path in config["rule_files"]] == ["../alerts.yml"]
    (alerts,) = documents(DEPLOY / "alerts.yml")
    assert all(rule["expr"] for group in alerts["groups"] for rule in group["rules"])

    (sources,) = documents(COMPOSE.with_name("grafana-sources.yml"))
    (boards,) = documents(COMPOSE.with_name("grafana-boards.yml"))
    assert "http://prometheus:9090" == sources["datasources"][0]["url"]
    folder = boards["providers"][0]["options"]["path"]
    grafana = services["grafana"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert any(f":{home}:" in one for one in grafana["volumes"]) and home.startswith(f"{folder}/")


@pytest.mark.system
def test_valkey_keeps_what_the_nodes_promise(services: dict[str, Any], tmp_path: Path) -> None:
    """The nodes would not start."""
    if not SERVERS:
        pytest.skip("there is no redis-server")
    name, *given = shlex.split(services["valkey"]["command"])
    assert "valkey-server" == name
    port = free_port()
    server = subprocess.Popen(
        [SERVERS[-1].path, *given, "--port", str(port), "--bind", HOST, "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    try:
        with redis.Redis(host=HOST, port=port) as client:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    told: dict[str, Any] = client.info()
                    break
                except redis.ConnectionError:
                    assert time.monotonic() < deadline
                    time.sleep(0.005)  # until it listens
            found = read_settings(client, told)
    finally:
        server.kill()
        server.wait()

    assert PROCESS == durability_of(found) == settings(CONFIG, {}).store.durability
    assert ("noeviction", "no") == (found["maxmemory-policy"], found["aof-load-truncated"])
    assert "0" != found["maxmemory"]


@pytest.fixture
def kafka_of_the_file(services: dict[str, Any], tmp_path: Path) -> Iterator[Any]:
    """A Kafka with the settings of the container, at other ports and in another folder."""
    skip_without_java()
    given = services["kafka"]["environment"]
    places = ("LISTENERS", "ADVERTISED_LISTENERS", "CONTROLLER_QUORUM_VOTERS", "LOG_DIRS")  # KafkaServer has its own
    more = {
        key.removeprefix("KAFKA_").lower().replace("_", "."): value
        for key, value in given.items()
        if key.removeprefix("KAFKA_") not in places
    }
    server = KafkaServer(tmp_path / "kafka", more=more)
    yield server
    server.kill()


def test_kafka_is_the_version_that_the_tests_have(services: dict[str, Any]) -> None:
    """The settings would be tried with one version and used with another one."""
    assert f"apache/kafka:{SERVER['version']()}" == services["kafka"]["image"]


@pytest.mark.system
@pytest.mark.slow
def test_a_node_serves_with_the_file_and_its_health_is_seen(
    services: dict[str, Any], kafka_of_the_file: Any, start_redis: Callable[..., RunningRedis], tmp_path: Path
) -> None:
    """The nodes would not start, or count as ill for ever, so that nothing else starts."""
    kafka_of_the_file.start()
    port, url = free_port(), f"unix://{start_redis().socket}"
    elsewhere: dict[str, Any] = {"redis__url": url, "kafka__hosts": kafka_of_the_file.address, "--config": CONFIG}
    elsewhere |= {"listeners__ws__host": HOST, "listeners__ws__port": free_port()}
    elsewhere |= {"admin__host": HOST, "admin__port": port}
    node = Node(tmp_path, settings(CONFIG, {}).node.workers, node__name="n1", **elsewhere)
    check = [sys.executable, *services["n1"]["healthcheck"]["test"][2:]]
    check[-1] = check[-1].replace(":9883/", f":{port}/")
    try:
        done = subprocess.run(check, capture_output=True, text=True, timeout=PATIENCE)
    finally:
        node.end()

    assert 0 == done.returncode, done.stderr
    assert 0 != subprocess.run(check, capture_output=True, timeout=PATIENCE).returncode
