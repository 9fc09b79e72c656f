# What would have become of the publishes of a trace under another policy: an estimate.
#
# Everything that decides is the broker's own: `admit`, `following`, the ledger and its accounts, the gates, the wait
# lists, the signals and the level. What is modelled is only what nobody decided and no trace can tell:
# - Publishes arrive when they did. What a client sent while it was held arrived later than it was sent, and does here.
# - A gate's resource does what it did: so many completions when it made some, and at the rate that was measured while
#   it had nothing to do and here has. One takes at least as long as the least that was ever measured.
# - The worker's lag is what it was, and more by the work that it has taken here and had not there: a worker that lags
#   does in a second the most that it was ever seen to do.
# - The other signals, and what other workers say of themselves, are what they were. So are the quotas' answers.
# Under the policy that was in force all of it follows what was recorded, which is how far it can be trusted.
import math
from collections import deque
from typing import Final

from analytics.backtest.outcome import Tally
from broker.config.schema import Overload
from broker.overload.admit import ACCEPT, CLOSE, NOT_WAITING, PAUSE, Publish, Verdict, decide, following, waits
from broker.overload.cost import Prices
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.overload.level import STEP, Level, Signal, Signals
from broker.overload.trace.player import Player, RecordedAnswer, Replayed
from broker.overload.wait_list import SLOT, TimeSlots, WaitList, of_credits, of_gate
from broker.reasons import PauseReason

LOOK: Final = 0.01  # seconds between two looks at who waits, as in a worker
OWN: Final = ("lag", "outbound", "memory", "connect")  # signals that are no gate's
BUSIEST: Final = 10  # steps of the level over which the most work of a worker is taken
EVER: Final = math.inf


class Batch:
    """Publishes that are under way to a resource."""

    def __init__(self, at: float, count: int, size: int) -> None:
        self.at = at
        self.count = count
        self.size = size


class Resource:
    """A gate, and what is behind it."""

    def __init__(self, settings: Overload, gate: Gate, was: Gate, ledger: Ledger) -> None:
        """*was*: the gate of the trace."""
        self.gate = gate
        self.was = was
        self.waiting = WaitList(settings, ledger)
        self._under_way: deque[Batch] = deque()
        self._spare = 0.0  # completions that it might have made meanwhile
        self._looked = EVER

    def take(self, count: int, size: int, now: float) -> None:
        """*gate* has taken them."""
        if not self._under_way:
            self._looked = now
            self._spare = 0.0
        if count:
            self._under_way.append(Batch(now, count, size))

    def busy(self) -> bool:
        return bool(self._under_way)

    def reset(self, now: float) -> None:
        self.gate.reset(now)
        self._under_way.clear()

    def idle(self, now: float) -> None:
        """Time passes, in which it makes what it was not seen to make for want of work."""
        seconds = max(0.0, now - self._looked)
        self._looked = now
        if self.was.count or not self._under_way:
            self._spare = 0.0
            return
        rate, _ = self.was.capacity()
        if rate <= 0.0:  # it never had work: nobody knows, and it is no bottleneck
            self.complete(self.gate.count, now)
            return
        self._spare += rate * seconds
        whole = int(self._spare)
        self._spare -= whole
        if whole:
            self.complete(whole, now)

    def complete(self, most: int, now: float) -> None:
        """It makes *most* completions, as far as there is anything that was long enough under way."""
        _, least = self.was.capacity()
        count = size = 0
        latency = 0.0
        while self._under_way and count < most and now - self._under_way[0].at >= least:
            first = self._under_way[0]
            latency = now - first.at
            part = min(first.count, most - count)
            bytes_of_it = first.size * part // first.count
            count += part
            size += bytes_of_it
            first.count -= part
            first.size -= bytes_of_it
            if not first.count:
                self._under_way.popleft()
        if count:
            self.gate.done(count, size, latency, now)


class Arrived:
    """A publish that waits to be judged, or several that are alike."""

    def __init__(self, found: Replayed, publish: Publish, resources: list[Resource]) -> None:
        self.publish = publish
        self.resources = resources
        # Of all of them that are left.
        self.count = found.count
        self.size = found.size
        self.cost = found.cost + found.count * (publish.cost - found.publish.cost)
        self.work = found.cost  # by the prices that were in force: it is the same whatever is asked for it
        self.follows = found.run  # one that was just taken
        self.room = found.room
        self.answer = found.answer
        self.shut = found.shut
        self.at = found.at

    def part(self, count: int) -> tuple[int, int]:
        """Take *count* of them out: (their bytes, their work)."""
        size = self.size * count // self.count
        work = self.work * count // self.count
        self.cost -= self.cost * count // self.count
        self.size -= size
        self.work -= work
        self.count -= count
        return size, work


class Sender:
    """One client."""

    def __init__(self, number: int, account: Account) -> None:
        self.number = number
        self.account = account
        self.arrived: deque[Arrived] = deque()
        self.since = NOT_WAITING
        self.held: Verdict | None = None
        self.waiting: WaitList | None = None  # the list in which it stands
        self.as_recorded = False  # it is held by what is no publish, for as long as it was


class World:
    def __init__(self, settings: Overload, recorded: Overload, player: Player, tally: Tally) -> None:
        """*settings*: of the policy; *recorded*: those that were in force; *player*: plays what was, by those."""
        self._settings = settings
        self._player = player
        self.tally = tally
        self._prices = Prices(settings.cost)
        self._prices_then = Prices(recorded.cost)
        self._protects = settings.enabled
        self._protected = recorded.enabled
        self._ledger = Ledger(settings, 0.0)
        self._level = Level(settings)
        self._signals = Signals(settings, "")
        self._lag_target = recorded.lag
        self._contended = 0
        self._senders: list[Sender] = []
        self._resources: list[Resource] = []
        self._credits = WaitList(settings, self._ledger)
        self._later = TimeSlots()
        self._waiting = 0  # publishes that are held, or are behind one
        self._held = 0  # clients
        self._looked = -EVER
        # Work, in credits of the policy that was in force.
        self._done_then = 0
        self._done_now = 0
        self._ahead = 0.0  # what lies before the worker here and did not there
        self._steps: deque[int] = deque(maxlen=BUSIEST)
        self._most = 0.0  # in a step

    # What the trace says, in its order.

    def begin(self) -> None:
        """The player knows of the beginning."""
        then = self._player.ledger
        self._ledger.restore(0.0, then.state()[1], then.level if self._protects else 0.0)

    def pass_time(self, now: float) -> None:
        """It is *now*: what happened of itself since the last time."""
        if self._looked == -EVER:
            self._looked = now
        while self._looked + LOOK <= now:
            if not self._held and not any(resource.busy() for resource in self._resources):
                self._looked = now
                break
            self._looked += LOOK
            self.tally.pass_time(self._looked)
            for resource in self._resources:
                resource.idle(self._looked)
            if self._held:
                self._wake(self._looked)
        self.tally.pass_time(now)

    def meet(self, client: str) -> None:
        """An account occurs that did not before: it has here the same share of what it may have as it had there."""
        player, now = self._player, self._player.now
        then = player.accounts[-1]
        share = then.balance(player.ledger, now) / player.ledger.cap
        account = Account(client, self._ledger.granted(now) - share * self._ledger.cap)
        self._senders.append(Sender(len(self._senders), account))

    def add_gate(self) -> None:
        """A gate occurs that did not before, with what is under way to it."""
        then = self._player.gates[-1]
        now = self._player.now
        gate = Gate(self._settings, then.resource, then.bit, now)
        gate.restore(then.state())
        resource = Resource(self._settings, gate, then, self._ledger)
        resource.take(then.count, then.bytes, now)
        self._resources.append(resource)

    def took(self, number: int, count: int, size: int) -> None:
        """Publishes that nobody judged passed a gate."""
        resource = self._resources[number]
        resource.gate.take(count, size, self._player.now)
        resource.take(count, size, self._player.now)

    def completed(self, number: int, count: int) -> None:
        """What is behind a gate made *count* completions."""
        resource = self._resources[number]
        resource.complete(count, self._player.now)
        if len(resource.waiting):
            self._release_all(of_gate(resource.waiting, resource.gate, self._player.now), self._player.now)

    def reset(self, number: int) -> None:
        self._resources[number].reset(self._player.now)

    def step(self, values: list[float]) -> None:
        """A step of the level; these are the signals that were measured."""
        player, now = self._player, self._player.now
        lag = self._lag(max(0.0, values[0]) if values else 0.0)
        self._know(player.resources)
        delays = {resource.gate.bit: resource.gate.delay(now) for resource in self._resources}
        for name, value in zip(player.resources, values, strict=True):
            bit = player.resources[name]
            if name == OWN[0]:
                value = lag
            elif name not in OWN and bit in delays:
                value = delays[bit]
            self._signals.named(name).measure(value, now)
            if name not in OWN or name == OWN[0]:
                self.tally.delay(name, value)
        self._signals.look(now)
        self._level.step(self._signals.worst, self._signals.worst_name)
        level = max(self._level.value, player.others)
        self.tally.level(level)
        if not self._protects:
            return
        contended = player.others_contended
        for signal in self._contending():
            contended |= player.resources[signal.name]
        self._contended = contended
        if level != self._ledger.level:
            self._ledger.change(level, now)

    def arrive(self, found: Replayed, again: bool) -> None:
        """Publishes were judged; *again*: it is one that was held meanwhile, and arrived before."""
        sender = self._senders[found.number]
        if found.verdict.kind == ACCEPT:
            self._done_then += found.cost * found.passed // found.count
        if again:
            if sender.as_recorded and not found.shut:
                sender.arrived[0].shut = False
                self._release(sender, self._player.now)
            return
        sender.account.spent += max(0, found.unseen)
        arrived = Arrived(found, self._priced(found), [self._resources[number] for number in found.gates])
        self.tally.arrived(found.count)
        sender.arrived.append(arrived)
        self._waiting += found.count
        if sender.held is None:
            self._serve(sender, self._player.now)

    def gone(self, number: int) -> None:
        """A client that was held has gone, and what it sent is lost, if it is held here as well."""
        sender = self._senders[number]
        if sender.held is None:
            return
        self._let_go(sender)
        self._lose(sender)

    def waiting(self) -> int:
        """Publishes that are held, or are behind one."""
        return self._waiting

    # What follows from it.

    def _serve(self, sender: Sender, now: float) -> None:
        """Take what *sender* has sent, until one has to wait."""
        while sender.arrived:
            first = sender.arrived[0]
            publish = first.publish
            if first.follows and sender.since == NOT_WAITING:
                first.follows = False
                self._follow(sender, first, now)
                if not first.count:
                    sender.arrived.popleft()
                    continue
            publish.since = sender.since
            answer = first.answer if publish.since == NOT_WAITING else None  # who waited for a quota has it then
            wait = self._settings.wait
            if first.shut and (publish.since == NOT_WAITING or now - publish.since >= wait):
                verdict = waits(publish, Verdict(PAUSE, PauseReason.GATE), wait, now)
            else:
                gates = [resource.gate for resource in first.resources]
                quotas, contended = RecordedAnswer(answer), self._contended
                verdict = decide(publish, sender.account, self._ledger, gates, quotas, None, contended, wait, now)
            if verdict.kind == PAUSE:
                self._hold(sender, first, verdict, now)
                return
            sender.since = NOT_WAITING
            if verdict.kind == ACCEPT:
                self._took(first, 1, now)
                if first.count:
                    self._follow(sender, first, now)
            else:
                self.tally.turned_away(verdict)
                first.part(1)
                self._waiting -= 1
            if not first.count:
                sender.arrived.popleft()
            if verdict.kind == CLOSE:
                self._lose(sender)

    def _follow(self, sender: Sender, first: Arrived, now: float) -> None:
        """Take so many of those that are like the one which was just taken as may follow it."""
        publish = first.publish
        gates = [resource.gate for resource in first.resources]
        longest, price = max(1, publish.size), max(1, publish.cost)
        room = following(gates, first.room, sender.account, self._ledger, longest, price, publish.exempt, now)
        count = min(first.count, room)
        if count <= 0:
            return
        size = first.size * count // first.count
        for gate in gates:
            gate.take(count, size, now)
        sender.account.follow(self._ledger, first.cost * count // first.count, now)
        self._took(first, count, now)

    def _took(self, arrived: Arrived, count: int, now: float) -> None:
        size, work = arrived.part(count)
        for resource in arrived.resources:
            resource.take(count, size, now)
        self._waiting -= count
        self._done_now += work
        self.tally.taken(count, now - arrived.at)

    def _priced(self, found: Replayed) -> Publish:
        """A publish like *found*, at the price that the policy asks."""
        was = found.publish
        resources = was.resources
        if found.run:  # which is recorded after one that needed the same
            resources = self._player.resources.get(OWN[0], 0)
            for number in found.gates:
                resources |= self._resources[number].gate.bit
        publish = Publish(was.version, was.qos, was.size, was.cost, resources)
        publish.deliveries = was.deliveries
        publish.retained = was.retained
        publish.exempt = (was.exempt and self._protected) or not self._protects
        publish.cost = max(1, was.cost - self._price(self._prices_then, was) + self._price(self._prices, was))
        return publish

    def _price(self, prices: Prices, publish: Publish) -> int:
        return prices.of(publish.size, publish.deliveries, 0, publish.retained, publish.qos)

    def _hold(self, sender: Sender, first: Arrived, verdict: Verdict, now: float) -> None:
        reason = verdict.reason
        assert isinstance(reason, PauseReason)
        if sender.since == NOT_WAITING:
            sender.since = now
        sender.held = verdict
        sender.waiting = None
        self._held += 1
        self.tally.held(sender.number, sender.account.client, reason.label)
        if first.shut and verdict.gate is None and reason is PauseReason.GATE:
            sender.as_recorded = True
            self._later.add(int((sender.since + self._settings.wait) / SLOT) + 1, sender)
        elif verdict.gate is not None:
            sender.waiting = next(one.waiting for one in self._resources if one.gate is verdict.gate)
        elif reason is PauseReason.CREDITS:
            sender.waiting = self._credits
        else:
            self._later.add(int(verdict.until / SLOT) + 1, sender)
        if sender.waiting is not None:
            sender.waiting.add(sender, sender.account, sender.since, verdict.until, now)

    def _wake(self, now: float) -> None:
        for resource in self._resources:
            if len(resource.waiting):
                self._release_all(of_gate(resource.waiting, resource.gate, now), now)
        if len(self._credits):
            own = self._player.resources.get(OWN[0], 0)
            self._release_all(of_credits(self._credits, self._contended & own != 0, now), now)
        self._release_all(self._later.take(int(now / SLOT)), now)

    def _release_all(self, senders: list[object], now: float) -> None:
        for sender in senders:
            assert isinstance(sender, Sender)
            self._release(sender, now)

    def _release(self, sender: Sender, now: float) -> None:
        self._let_go(sender)
        self._serve(sender, now)

    def _let_go(self, sender: Sender) -> None:
        """It is held no more."""
        held = sender.held
        assert held is not None
        if sender.waiting is not None:
            sender.waiting.remove(sender)
        elif sender.as_recorded:
            self._later.remove(int((sender.since + self._settings.wait) / SLOT) + 1, sender)
        else:
            self._later.remove(int(held.until / SLOT) + 1, sender)
        sender.held = None
        sender.as_recorded = False
        self._held -= 1
        self.tally.free(sender.number)

    def _lose(self, sender: Sender) -> None:
        """All that it has sent and nobody has read."""
        lost = sum(arrived.count for arrived in sender.arrived)
        sender.arrived.clear()
        sender.since = NOT_WAITING
        self._waiting -= lost
        self.tally.lost(lost)

    def _know(self, resources: dict[str, int]) -> None:
        known = self._signals.values()
        if known.keys() == resources.keys():
            return
        for name in known.keys() - resources.keys():
            self._signals.remove(self._signals.named(name))
        for name in resources.keys() - known.keys():
            self._signals.add_gate(name)

    def _contending(self) -> list[Signal]:
        return [signal for signal in self._signals.all() if signal.contended]

    def _lag(self, then: float) -> float:
        """The lag here, where it was *then* there."""
        self._steps.append(self._done_then)
        self._most = max(self._most, sum(self._steps) / BUSIEST)
        self._ahead += self._done_now - self._done_then
        spare = self._most - self._done_then
        self._done_then = self._done_now = 0
        if not self._most:
            return then
        if self._ahead > 0.0 and then < self._lag_target:  # it had time left
            self._ahead = max(0.0, self._ahead - max(0.0, spare))
        second = self._most / STEP
        self._ahead = max(self._ahead, -then * second)
        return max(0.0, then + self._ahead / second)
