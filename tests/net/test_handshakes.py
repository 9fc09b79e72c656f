# The queue of TLS handshakes.
from functools import partial

from broker.net.offload import Offload
from broker.net.transports.handshakes import UNDER_WAY, Handshakes, HandshakeStep
from tests.net.tls import Later


def test_what_ends_a_handshake_goes_first_and_then_the_newest() -> None:
    """In a flood nobody would connect: the handshakes that are served would be of clients that gave up."""
    threads, done = Later(), list[str]()
    handshakes = Handshakes(Offload(threads, lambda call: call()))
    for _ in range(UNDER_WAY):
        handshakes.offer(HandshakeStep(partial(done.append, "busy"), True))
    steps = [HandshakeStep(partial(done.append, name), name != "end") for name in ("old", "gone", "new", "end")]
    for step in steps:
        handshakes.offer(step)
    handshakes.forget(steps[1])

    assert 3 == handshakes.waiting()
    begun, threads.waiting = threads.waiting, []
    for finished, work in begun:
        work()
        finished.set_result(None)
    while threads.waiting:
        finished, work = threads.waiting.pop(0)
        work()
        finished.set_result(None)
    assert ["busy"] * UNDER_WAY + ["end", "new", "old"] == done
