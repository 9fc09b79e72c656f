# Resources: what can be overloaded. Each has a name, which is the same in every record that is about it.
#
#   "node NAME"        the CPU, memory and connects of a node: the signals that its workers measure of themselves
#   "NODE/NUMBER ..."  what a gate leads to: a worker, its store, its log; named as in broker/overload/level.py
#   "redis"            and the other names of SHARED: what all nodes have in common
#   ELSEWHERE          a worker without records here raised the level: its node uses another Redis, or they are lost
#   OTHER              all resources beyond those that the analysis has room for
from typing import Final

from broker.insight.explain import place
from broker.insight.reason_words import SIGNALS

NODE: Final = "node "
SHARED: Final = ("redis", "topology")
ELSEWHERE: Final = "elsewhere"
OTHER: Final = "other resources"


def resource_of(node: str, cause: str) -> str:
    """Return the resource that is overloaded if a worker of *node* has the *cause*."""
    if cause in SHARED:
        return cause
    # The name of a gate has a slash, or it is that of a backbone; any other cause is a signal or a reason.
    return cause if "/" in cause or (" " in cause and cause not in SIGNALS) else f"{NODE}{node}"


def node_of(resource: str) -> str:
    """Return the node to which *resource* belongs; "" if it is none of a single node."""
    if resource in SHARED or resource in (ELSEWHERE, OTHER):
        return ""
    if resource.startswith(NODE):
        return resource.removeprefix(NODE)
    node, slash, _ = resource.rpartition("/")
    return node if slash else resource.partition(" ")[0]


def words(resource: str) -> str:
    """Return *resource* in words, for people."""
    if resource == ELSEWHERE:
        return "a worker without records"
    return resource if resource.startswith(NODE) else place(resource)
