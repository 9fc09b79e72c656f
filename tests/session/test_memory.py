# The account of messages beside what they really take, as the allocator says.
import tracemalloc

import pytest

from broker.mqtt.packets import V5
from broker.session.queue import MessageBudget
from tests.session.receiver import PLENTY, Receiver, message

MESSAGES = 4000  # of several receivers: the windows and queues of one may grow at once by half


pytestmark = [
    pytest.mark.no_cover,  # what coverage remembers would count as ours
    pytest.mark.usefixtures("traced"),
]


def growth(receivers: list[Receiver], payload: int, copies: int = 1) -> int:
    """Bytes that are held once each of *receivers* was offered its part of MESSAGES messages, each to *copies*."""
    before = tracemalloc.get_traced_memory()[0]
    for number in range(0, MESSAGES, len(receivers)):
        for at in range(0, len(receivers), copies):
            offered = message(b"%05d" % number + bytes(payload - 5), 1, topic=b"device/%05d/state" % number)
            for receiver in receivers[at : at + copies]:
                receiver.session.offer(offered, 0.0)
    for receiver in receivers:
        receiver.take_bytes()
    return tracemalloc.get_traced_memory()[0] - before


@pytest.mark.parametrize("payload", [10, 100, 1000, 20_000])
@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("copies", [1, 4])
def test_the_account_is_what_messages_take(payload: int, connected: bool, copies: int) -> None:
    """Messages would take a multiple of what they may, or a fleet be refused what there is memory for."""
    budget = MessageBudget(PLENTY << 4)
    receivers = [Receiver(expiry=60, queue=MESSAGES, budget=budget) for _ in range(8)]
    if connected:
        for receiver in receivers:
            receiver.connect(V5)

    grown = growth(receivers, payload, copies)

    assert 0.85 * grown < budget.used < 1.15 * grown, (grown, budget.used)
