# The settings that nodes of a cluster compare when one of them starts (node_lease.py).
#
# Some have to agree: what one node has promised, another one would break, or they would share in Redis what they do not
# mean alike. A node that differs there does not start. The limits of clients should agree, as a client may meet another
# node with its next connection. They only make a warning: or no limit could be changed without the end of all nodes.
from collections.abc import Mapping
from typing import Final

from broker.config.schema import REPLICATED, Config
from broker.config.sources import described

# Of one node: how many clients it takes, what they may use of its memory, and how quickly they may come.
OF_A_NODE: Final = (
    "limits.connect",
    "limits.sessions",
    "limits.will_budget",
    "limits.subscription_budget",
    "limits.queue_budget",
)
SHARED_QUOTAS: Final = ("quotas.tenant", "quotas.cluster.", "quotas.reserve")  # with quotas.tenant_of


def agreed(config: Config) -> dict[str, str]:
    """The settings that have to be the same on all nodes."""
    values = described(config)
    keys = [key for key in values if key.startswith(SHARED_QUOTAS)]
    keys += ["access.exclusive_client_ids", "inbound.backbone"]
    if config.inbound.enabled():
        keys += ["inbound.topic", "inbound.partitions"]
    if config.store.durability == REPLICATED:
        keys.append("store.replicas")
    found = {key: _text(values[key]) for key in keys}
    if config.application.clients:
        found["the place of logs"] = "Kafka" if config.kafka.hosts else "Redis"
        found["application.shared"] = config.application.shared
    return found


def compared(config: Config) -> Mapping[str, str]:
    """The settings that should be the same on all nodes."""
    values = described(config)
    keys = [key for key in values if key.startswith("limits.") and not key.startswith(OF_A_NODE)]
    return {key: _text(values[key]) for key in [*keys, "retained.messages"]}


def _text(value: object) -> str:
    """As a configuration file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
