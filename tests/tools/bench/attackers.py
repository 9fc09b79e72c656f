# python -m tests.tools.bench.attackers NAME --port N: one client, or crowd of clients, that wants to harm the others.
#
# A process of its own, so that its work delays nobody but itself. It prints a line as soon as it is at full strength,
# goes on until its standard input ends, and prints what became of it.
import argparse
import json
import os
import select
import sys
from collections.abc import Iterator
from itertools import count, product
from random import Random
from typing import Final

from broker.mqtt.packets import Publish, Subscribe, Unsubscribe, Wanted
from tests.tools.bench.attack import OPENING_AT_ONCE, Attack, Flood, Hostile, hello, packets
from tests.tools.bench.floods import FLOODS
from tests.tools.bench.scale import descriptors
from tests.tools.fuzz.channels import Channel, Tls
from tests.tools.fuzz.loop import Loop
from tests.tools.fuzz.transports import NAMES, Transport, trusting_context

NICE: Final = 10  # a real attacker takes no processor time of the broker's machine
PATIENCE: Final = 60.0  # seconds to be at full strength
BLOCK: Final = 64 * 1024  # bytes said at once
GARBAGE: Final = 50  # connections of each kind
STALLED: Final = 1000
TRICKLING: Final = 1000
ANNOUNCING: Final = 20
DEAF: Final = 50
SIPPING: Final = 150  # fewer than OPENING_AT_ONCE, as those that do not read are never answered
CROWD: Final = 5000
HALF_HANDSHAKES: Final = 2000
FILTERS: Final = 10_000
FILTERS_AT_ONCE: Final = 500  # in one SUBSCRIBE
COMBINERS: Final = 8  # clients whose filters have every combination of + in
COMBINED: Final = 13  # of the
DEPTH: Final = 32  # levels of each filter, as many as a topic may have
SAME: Final = b"a/"
FLOODED: Final = 100  # subscribers of the flood
HUGE_PUBLISH: Final = b"\x30\xff\xff\xff\x7f\x00\x04huge"
PAYLOAD: Final = bytes(100)


class Garbage(Attack):
    """Random bytes, after a CONNECT or instead of one."""

    def start(self) -> None:
        random = Random(1)

        def speak(who: Hostile) -> None:
            who.say(random.randbytes(BLOCK))

        self.gather(GARBAGE, lambda n: Hostile(self, n, hello(n) if n % 2 else b"", speak), patient=False)


class Stalls(Attack):
    """Half a packet, and nothing more."""

    def start(self) -> None:
        half = packets(Publish(b"stalled", bytes(1000)))[:500]
        self.gather(STALLED, lambda n: Hostile(self, n, hello(n) + half))


class Trickler(Hostile):
    """Says one byte of a CONNECT and a long PUBLISH at a time; half of them have sent the CONNECT at once."""

    def __init__(self, attack: Attack, number: int) -> None:
        self._words = hello(number, Publish(b"trickle", bytes(1000)))
        self._at = len(hello(number)) if number % 2 else 1
        super().__init__(attack, number, self._words[: self._at])

    def again(self) -> None:
        self._at = len(self.first)
        super().again()

    def drip(self) -> None:
        self.say(self._words[self._at : self._at + 1])
        self._at += 1


class Trickles(Attack):
    """One byte a second."""

    def start(self) -> None:
        self._tricklers = [Trickler(self, number) for number in range(TRICKLING)]
        for one in self._tricklers:
            one.begin()
        self.ready = True
        self.loop.later(1.0, self._drip)

    def _drip(self) -> None:
        for one in self._tricklers:
            one.drip()
        self.loop.later(1.0, self._drip)


class Announces(Attack):
    """A PUBLISH of 256 MB, and as much of it as is taken."""

    def start(self) -> None:
        self.gather(ANNOUNCING, lambda n: Hostile(self, n, hello(n), self._speak))

    def _speak(self, who: Hostile) -> None:
        who.say(HUGE_PUBLISH + bytes(16 * BLOCK))


class NeverReads(Attack):
    """Subscribed to everything, the pair's messages and a flood of their own; they do not read."""

    def start(self) -> None:
        everything = Subscribe(1, [Wanted(b"#", 1)])
        self.gather(DEAF, lambda n: Hostile(self, n, hello(n, everything), deaf=True), patient=False)
        flooder = Hostile(self, DEAF, hello(DEAF))
        flooder.begin()
        Flood(flooder, lambda: packets(Publish(b"hostile/flood", bytes(1000))) * 60).go_on()


class Sips(Attack):
    """Many readers of messages as short as can be, which do not read: bytes that count are few, objects are many."""

    def start(self) -> None:
        sips = Subscribe(1, [Wanted(b"s/+", 0)])
        self.gather(SIPPING, lambda n: Hostile(self, n, hello(n, sips), deaf=True), patient=False)
        flooder = Hostile(self, SIPPING, hello(SIPPING))
        flooder.begin()
        Flood(flooder, lambda: packets(Publish(b"s/1", b""), Publish(b"s/2", b"")) * 500).go_on()  # no run of one topic


class Remainders(Attack):
    """A large packet for nobody, and the beginning of another one behind it."""

    def start(self) -> None:
        said = packets(Publish(b"nobody", bytes(60_000))) + packets(Publish(b"nobody", bytes(100)))[:7]
        self.gather(CROWD, lambda n: Hostile(self, n, hello(n) + said))


class Crowd(Attack):
    """Many connections that stay."""

    def start(self) -> None:
        self.gather(CROWD, lambda n: Hostile(self, n, hello(n)))


class Storm(Attack):
    """Opens and closes, as fast as it can."""

    def start(self) -> None:
        self.gather(OPENING_AT_ONCE, lambda n: Hostile(self, n, hello(n)))

    def heard(self, who: Hostile, data: bytes) -> None:
        who.connection.reset()
        self.loop.later(0.0, who.again)


class HalfHandshakes(Attack):
    """TLS handshakes that end after the first message, or within it."""

    over = "tls"

    def start(self) -> None:
        context = trusting_context()

        def one(number: int) -> Hostile:
            greeting = Tls(context).outgoing()
            return Hostile(self, number, greeting if number % 2 else greeting[:100])

        self.gather(HALF_HANDSHAKES, one, patient=False)

    def channel(self) -> Channel:
        return Channel()


class Subscribes(Attack):
    """Ten thousand filters, again and again; half of them match half of all topics."""

    def start(self) -> None:
        names = [b"hostile/%d/x" % n if n % 2 else b"+/%d/#" % n for n in range(FILTERS)]
        self._rounds = []
        for at in range(0, FILTERS, FILTERS_AT_ONCE):
            self._rounds.append(packets(Subscribe(1, [Wanted(one, 1) for one in names[at : at + FILTERS_AT_ONCE]])))
        for at in range(0, FILTERS, FILTERS_AT_ONCE):
            self._rounds.append(packets(Unsubscribe(1, names[at : at + FILTERS_AT_ONCE])))
        self._at = 0
        self.gather(1, lambda n: Hostile(self, n, hello(n)))

    def heard(self, who: Hostile, data: bytes) -> None:
        who.say(self._rounds[self._at % len(self._rounds)])
        self._at += 1


class Retains(Attack):
    """Retained messages, each on a topic of its own."""

    def start(self) -> None:
        numbers = count()

        def block() -> bytes:
            return packets(*[Publish(b"hostile/%d" % next(numbers), PAYLOAD, 0, True) for _ in range(500)])

        flooder = Hostile(self, 0, hello(0))
        flooder.begin()
        Flood(flooder, block).go_on()
        self.ready = True


class Patterns(Attack):
    """Filters with + in every combination of positions, and publishes to topics that all of them match."""

    def start(self) -> None:
        numbers = count()

        def block() -> bytes:
            return packets(*[Publish(SAME * (DEPTH - 1) + b"%d" % next(numbers), b"") for _ in range(500)])

        self.gather(COMBINERS, lambda n: Hostile(self, n, hello(n, *combinations(n))))
        flooder = Hostile(self, COMBINERS, hello(COMBINERS))
        flooder.begin()
        Flood(flooder, block).go_on()


def combinations(shift: int) -> Iterator[Subscribe]:
    """SUBSCRIBEs to 2**COMBINED filters of DEPTH levels, which differ after the first *shift* levels."""
    rest = b"+/" * (DEPTH - COMBINED - shift - 1) + b"+"
    names = [SAME * shift + b"".join(one) + rest for one in product((SAME, b"+/"), repeat=COMBINED)]
    for at in range(0, len(names), FILTERS_AT_ONCE):
        yield Subscribe(1, [Wanted(name) for name in names[at : at + FILTERS_AT_ONCE]])


class Floods(Attack):
    """QoS 0 to subscribers of its own, as fast as the broker takes it."""

    def start(self) -> None:
        own = Subscribe(1, [Wanted(b"hostile/flood")])
        self.gather(FLOODED, lambda n: Hostile(self, n, hello(n, own)))
        flooder = Hostile(self, FLOODED, hello(FLOODED))
        flooder.begin()
        block = packets(Publish(b"hostile/flood", PAYLOAD)) * 500
        Flood(flooder, lambda: block).go_on()


ATTACKS: Final[dict[str, type[Attack]]] = {
    "garbage": Garbage,
    "stalls": Stalls,
    "trickles": Trickles,
    "announces": Announces,
    "never-reads": NeverReads,
    "sips": Sips,
    "remainders": Remainders,
    "crowd": Crowd,
    "storm": Storm,
    "half-handshakes": HalfHandshakes,
    "subscribes": Subscribes,
    "retains": Retains,
    "patterns": Patterns,
    "floods": Floods,
    **FLOODS,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.attackers")
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--transport", choices=NAMES, default="tcp")
    arguments = parser.parse_args()
    os.nice(NICE)
    descriptors()
    loop = Loop()
    ends: list[int] = []
    loop.watch(0, select.EPOLLIN | select.EPOLLHUP, ends.append)
    attack = ATTACKS[arguments.name](loop, Transport(arguments.transport, arguments.port))
    attack.start()
    told = False
    latest = loop.now + PATIENCE
    while not ends:
        loop.turn(0.1)
        if attack.ready and not told:
            told = True
            print("ready", flush=True)
        elif not told and loop.now > latest:
            sys.exit(f"{arguments.name}: not at full strength after {PATIENCE:.0f} s")
    print(json.dumps({"opened": attack.opened, "ended": attack.ended, "said": attack.said}))


if __name__ == "__main__":
    main()
