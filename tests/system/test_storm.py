# Many clients at once: they come in at the rate that is set, and who is in goes on as before. Also many that are no
# trouble at all but never read.
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from broker.mqtt.packets import V5, V311, ConnAck, Connect
from broker.mqtt.properties import USER_PROPERTY
from tests.system import node
from tests.system.processes import PATIENCE, BrokerProcess
from tests.system.raw import RawClient
from tests.system.scene import Silent

StartWeir = Callable[..., BrokerProcess]

pytestmark = pytest.mark.weir_only("it has no limit for CONNECTs")

FLEET = 300
SILENT = 200


class Pair:
    """A client that publishes, and one that gets it."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._publisher, self._subscriber = (stack.enter_context(closing(RawClient(port))) for _ in range(2))
        self._publisher.connect("publisher")
        self._subscriber.connect("subscriber")
        self._subscriber.subscribe("pair", qos=1)
        self._sent = 0

    def works(self) -> bool:
        """One message of QoS 1 goes all the way."""
        self._sent += 1
        payload = b"%d" % self._sent
        self._publisher.publish("pair", payload, 1)
        return self._subscriber.take().payload == payload


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def counted(weir: BrokerProcess, kind: str, name: str) -> int:
    """What `weir status` says of the node."""
    assert weir.control is not None
    found: dict[str, int] = node.status(weir.control)["totals"][kind]
    return found.get(name, 0)


def knock(weir: BrokerProcess, stack: ExitStack, client_id: str, version: int = V311) -> RawClient:
    """A client that has sent its CONNECT, and does not wait for an answer."""
    client = stack.enter_context(closing(RawClient(weir.port, version)))
    client.send(Connect(version, client_id))
    return client


def test_a_fleet_comes_in_while_the_others_work(start_weir: StartWeir, stack: ExitStack) -> None:
    """After an outage those who are in would stand still, or those who come be sent away."""
    weir = start_weir({"overload.connects_per_second": 500, "overload.connect_burst": 10})
    pair = Pair(weir.port, stack)
    fleet = [knock(weir, stack, f"client-{number}") for number in range(FLEET)]
    assert pair.works()
    answers = [client.expect(ConnAck).code for client in fleet]

    assert [0] * FLEET == answers
    assert pair.works()
    until(lambda: counted(weir, "counters", "connects_delayed") > 0)
    until(lambda: 0 == counted(weir, "gauges", "connects_waiting"))


def test_who_finds_no_room_is_told_when_to_come_again(start_weir: StartWeir, stack: ExitStack) -> None:
    """A fleet that is too large even to wait would see dead lines, or come back at once, all of it."""
    weir = start_weir({"overload.connects_per_second": 1, "overload.connect_burst": 8, "overload.connects_waiting": 1})
    fleet = [knock(weir, stack, f"client-{number}", V5) for number in range(40)]
    refused = []
    for client in fleet[:20]:
        answer = client.expect(ConnAck)
        if answer.code:
            refused.append((answer.code, answer.properties[USER_PROPERTY]))

    assert {0x89} == {code for code, _ in refused}
    assert len({str(when) for _, when in refused}) > len(refused) / 2


def test_a_connect_that_waits_is_answered_at_the_end(start_weir: StartWeir, stack: ExitStack) -> None:
    """`weir stop` would leave those who wait with a dead line."""
    weir = start_weir({"overload.connects_per_second": 1, "overload.connect_burst": 1, "drain.timeout": 1})
    fleet = [knock(weir, stack, f"client-{number}", V5) for number in range(20)]
    until(lambda: counted(weir, "counters", "connects_delayed") > 0)
    weir.terminate()
    codes = [answer.code for client in fleet for answer in client.expect_end() if isinstance(answer, ConnAck)]

    assert (20, {0, 0x88}) == (len(codes), set(codes))


def test_clients_that_never_read_cost_the_others_nothing(start_weir: StartWeir, stack: ExitStack) -> None:
    """Whoever sends pings and does not read the answers would hold up the rest, or fill the memory of the broker."""
    weir = start_weir({})
    pair = Pair(weir.port, stack)
    silent = [stack.enter_context(closing(Silent(weir.port, f"silent-{number}"))) for number in range(SILENT)]
    for _ in range(20):
        for client in silent:
            client.ping()
        assert pair.works()

    until(lambda: 2 + SILENT == counted(weir, "gauges", "connected"))


def until(holds: Callable[[], bool]) -> None:
    """The node is told once a second by its workers what they count."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.05)
