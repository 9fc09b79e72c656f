# What a reload of a node reads, apart from its workers.
from pathlib import Path

import structlog

from broker.config.overrides import override_from
from broker.config.schema import Clients, Config, ConfigError
from supervisor.folder import NodeFolder
from supervisor.logfile import LogFile
from supervisor.node import Node
from supervisor.node_redis import NodeRedis

FIVE = override_from({"client": "c", "queue": 5})
SIX = override_from({"user": "u", "queue": 6})


class File:
    """The file of the configuration, which changes while the node runs."""

    def __init__(self) -> None:
        self.config = Config(clients=Clients(overrides=(FIVE,)))
        self.wrong = ""
        self.files = ""

    def read(self) -> Config:
        if self.wrong:
            raise ConfigError(self.wrong)
        return self.config

    def check(self) -> str:
        return self.files


def node_of(file: File, folder: Path) -> Node:
    config, node_folder = file.read(), NodeFolder("weir", str(folder))
    redis = NodeRedis(config, node_folder, structlog.get_logger())
    return Node(config, node_folder, [[]], LogFile(), file.check, redis, lambda: None, file.read)


async def test_a_reload_uses_other_overrides_only_if_all_is_right(tmp_path: Path) -> None:
    """A mistake in a file would take away the limits that hold, or leave workers with different ones."""
    file = File()
    node = node_of(file, tmp_path)
    assert [FIVE.described()] == node.limits.configured()
    file.config = Config(clients=Clients(overrides=(SIX, FIVE)))
    file.wrong = "It is not TOML."
    assert ["It is not TOML."] == await node.reload()
    file.wrong, file.files = "", "There is no ACL file."
    assert ["There is no ACL file."] == await node.reload()
    assert [FIVE.described()] == node.limits.configured()
    file.files = ""

    assert [] == await node.reload()
    assert [SIX.described(), FIVE.described()] == node.limits.configured()
    assert ["u", "c"] == [one["name"] for one in node.limits.listed_configured()]
