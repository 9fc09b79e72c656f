# Estimates the outcome of the publishes of a trace under another policy.
#
# All decisions are made by the code of the broker: `admit`, `following`, the ledger and its accounts, the gates, the
# wait lists, the signals and the level. Only the environment is modelled:
# - Publishes arrive at their recorded times. A publish that was sent while its client was throttled arrived late in
#   the recording, and arrives as late here.
# - The resource behind a gate makes its recorded completions. While it was idle in the recording but has work here, it
#   completes at its measured rate. A completion takes at least the shortest time that was ever measured.
# - The lag of the worker is the recorded one, plus the additional work of the simulation: per second, a lagging worker
#   does the most work that was ever recorded.
# - Other signals, the levels of other workers and the decisions of quotas are the recorded ones.
# For the recorded policy the model follows the recording; the difference shows its accuracy.
import math
from collections import deque
from typing import Final

from analytics.backtest.outcome import Tally
from broker.config.schema import Overload
from broker.overload.admit import ACCEPT, CLOSE, NOT_WAITING, PAUSE, Publish, Verdict, decide, following, waits
from broker.overload.cost import Prices
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.overload.level import STEP, Signal, Signals, WorkerLevel
from broker.overload.trace.player import Player, RecordedAnswer, Replayed
from broker.overload.wait_list import SLOT, CreditWaits, TimeSlots, WaitList, of_gate
from broker.reasons import PauseReason

POLL: Final = 0.01  # seconds between two checks of waiting clients, as in a worker
OWN: Final = ("lag", "outbound", "memory", "redis", "connect", "topology")  # signals that do not belong to a gate
BUSIEST: Final = 10  # steps of the level over which the maximum work of a worker is measured
EVER: Final = math.inf


class Batch:
    """Publishes in progress at a resource."""

    def __init__(self, at: float, count: int, size: int) -> None:
        self.at = at
        self.count = count
        self.size = size


class Resource:
    """A gate and the model of its resource."""

    def __init__(self, settings: Overload, gate: Gate, was: Gate, ledger: Ledger) -> None:
        """*was*: the recorded gate."""
        self.gate = gate
        self.was = was
        self.waiting = WaitList(settings, ledger)
        self._under_way: deque[Batch] = deque()
        self._spare = 0.0  # fraction of the next completion
        self._checked = EVER

    def take(self, count: int, size: int, now: float) -> None:
        """Add publishes that passed the gate."""
        if not self._under_way:
            self._checked = now
            self._spare = 0.0
        if count:
            self._under_way.append(Batch(now, count, size))

    def busy(self) -> bool:
        return bool(self._under_way)

    def reset(self, now: float) -> None:
        self.gate.reset(now)
        self._under_way.clear()

    def idle(self, now: float) -> None:
        """Make completions at the measured rate, if the resource was idle in the recording but has work here."""
        seconds = max(0.0, now - self._checked)
        self._checked = now
        if self.was.count or not self._under_way:
            self._spare = 0.0
            return
        rate, _ = self.was.capacity()
        if rate <= 0.0:  # never measured: the resource never had work, so it is no bottleneck
            self.complete(self.gate.count, now)
            return
        self._spare += rate * seconds
        whole = int(self._spare)
        self._spare -= whole
        if whole:
            self.complete(whole, now)

    def complete(self, most: int, now: float) -> None:
        """Complete at most *most* publishes that have been in progress for long enough."""
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
    """A publish that waits for a decision, or several similar ones."""

    def __init__(self, found: Replayed, publish: Publish, resources: list[Resource]) -> None:
        self.publish = publish
        self.resources = resources
        # Sums of the publishes that are left.
        self.count = found.count
        self.size = found.size
        self.cost = found.cost + found.count * (publish.cost - found.publish.cost)
        self.work = found.cost  # by the recorded prices: the work does not depend on the policy
        self.follows = found.run  # true: behind a publish that was just accepted
        self.room = found.room
        self.answer = found.answer
        self.shut = found.shut
        self.at = found.at

    def part(self, count: int) -> tuple[int, int]:
        """Remove *count* publishes; return their bytes and their work."""
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
        self.throttled: Verdict | None = None
        self.waiting: WaitList | None = None  # the list in which the client waits
        self.as_recorded = False  # true: it is throttled by a gate that is blocked, for as long as recorded


class World:
    def __init__(self, settings: Overload, recorded: Overload, player: Player, tally: Tally) -> None:
        """*settings*: of the policy; *recorded*: the recorded ones; *player*: plays the trace with *recorded*."""
        self._settings = settings
        self._player = player
        self.tally = tally
        self._prices = Prices(settings.cost)
        self._prices_then = Prices(recorded.cost)
        self._protects = settings.enabled
        self._protected = recorded.enabled
        self._ledger = Ledger(settings, 0.0)
        self._signals = Signals(settings, "")
        self._level = WorkerLevel(settings, self._signals)
        self._lag_target = recorded.lag
        self._contended = 0
        self._senders: list[Sender] = []
        self._resources: list[Resource] = []
        self._credits = CreditWaits(settings, self._ledger)
        self._later = TimeSlots()
        self._waiting = 0  # publishes that wait, or are behind a waiting one
        self._throttled = 0  # throttled clients
        self._checked = -EVER
        # Work, in credits of the recorded policy.
        self._done_then = 0
        self._done_now = 0
        self._ahead = 0.0  # backlog of the worker here, beyond the recorded one
        self._steps: deque[int] = deque(maxlen=BUSIEST)
        self._most = 0.0  # the maximum work in a step

    # The events of the trace, in their order.

    def begin(self) -> None:
        """Start with the state of the player at the beginning of the trace."""
        then = self._player.ledger
        self._signals.node = self._player.signals.node
        self._ledger.restore(0.0, then.state()[1], then.level if self._protects else 0.0)

    def pass_time(self, now: float) -> None:
        """Advance the time to *now*: complete work and wake waiting clients."""
        if self._checked == -EVER:
            self._checked = now
        while self._checked + POLL <= now:
            if not self._throttled and not any(resource.busy() for resource in self._resources):
                self._checked = now
                break
            self._checked += POLL
            self.tally.pass_time(self._checked)
            for resource in self._resources:
                resource.idle(self._checked)
            if self._throttled:
                self._wake(self._checked)
        self.tally.pass_time(now)

    def add_account(self, client: str) -> None:
        """Add a new account, with the same share of the credit limit as in the recording."""
        player, now = self._player, self._player.now
        then = player.accounts[-1]
        share = then.balance(player.ledger, now) / player.ledger.cap
        account = Account(client, self._ledger.granted(now) - share * self._ledger.cap)
        self._senders.append(Sender(len(self._senders), account))

    def add_gate(self) -> None:
        """Add a new gate, with its publishes in progress."""
        then = self._player.gates[-1]
        now = self._player.now
        gate = Gate(self._settings, then.resource, then.bit, now)
        gate.restore(then.state())
        resource = Resource(self._settings, gate, then, self._ledger)
        resource.take(then.count, then.bytes, now)
        self._resources.append(resource)

    def passed(self, number: int, count: int, size: int) -> None:
        """Add publishes that passed a gate without a decision."""
        resource = self._resources[number]
        resource.gate.take(count, size, self._player.now)
        resource.take(count, size, self._player.now)

    def completed(self, number: int, count: int) -> None:
        """The resource of a gate made *count* completions."""
        resource = self._resources[number]
        resource.complete(count, self._player.now)
        if len(resource.waiting):
            self._release_all(of_gate(resource.waiting, resource.gate, self._player.now), self._player.now)

    def reset(self, number: int) -> None:
        self._resources[number].reset(self._player.now)

    def step(self, values: list[float]) -> None:
        """Make a step of the level; *values* are the measured signals."""
        player, now = self._player, self._player.now
        lag = self._lag(max(0.0, values[0]) if values else 0.0)
        self._sync_signals(player.resources)
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
        self._level.step()
        level = max(self._level.value, player.others)
        self.tally.level(level, self._level.cause)
        if not self._protects:
            return
        contended = player.others_contended
        for signal in self._contending():
            contended |= player.resources[signal.name]
        self._contended = contended
        if level != self._ledger.level:
            self._ledger.change(level, now)

    def arrive(self, found: Replayed, again: bool) -> None:
        """Publishes were decided; *again*: it is a waiting publish, which has arrived before."""
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
        if sender.throttled is None:
            self._serve(sender, self._player.now)

    def disconnected(self, number: int) -> None:
        """A throttled client has disconnected. Its publishes are lost if it is throttled here as well."""
        sender = self._senders[number]
        if sender.throttled is None:
            return
        self._resume(sender)
        self._lose(sender)

    def waiting(self) -> int:
        """Return how many publishes wait, or are behind a waiting one."""
        return self._waiting

    # The simulation.

    def _serve(self, sender: Sender, now: float) -> None:
        """Decide the publishes of *sender*, until one has to wait."""
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
            answer = (
                first.answer if publish.since == NOT_WAITING else None
            )  # after waiting for a quota, the publish has it
            wait = self._settings.wait
            if first.shut and (publish.since == NOT_WAITING or now - publish.since >= wait):
                verdict = waits(publish, Verdict(PAUSE, PauseReason.GATE), wait, now)
            else:
                gates = [resource.gate for resource in first.resources]
                quotas, contended = RecordedAnswer(answer), self._contended
                verdict = decide(publish, sender.account, self._ledger, gates, quotas, None, contended, wait, now)
            if verdict.kind == PAUSE:
                self._throttle(sender, first, verdict, now)
                return
            sender.since = NOT_WAITING
            if verdict.kind == ACCEPT:
                self._accept(first, 1, now)
                if first.count:
                    self._follow(sender, first, now)
            else:
                self.tally.refused_or_dropped(verdict)
                first.part(1)
                self._waiting -= 1
            if not first.count:
                sender.arrived.popleft()
            if verdict.kind == CLOSE:
                self._lose(sender)

    def _follow(self, sender: Sender, first: Arrived, now: float) -> None:
        """Accept as many of the similar publishes as may follow the accepted one."""
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
        self._accept(first, count, now)

    def _accept(self, arrived: Arrived, count: int, now: float) -> None:
        size, work = arrived.part(count)
        for resource in arrived.resources:
            resource.take(count, size, now)
        self._waiting -= count
        self._done_now += work
        self.tally.accepted(count, now - arrived.at)

    def _priced(self, found: Replayed) -> Publish:
        """Return a publish like *found*, with the price of the policy."""
        was = found.publish
        publish = Publish(was.version, was.qos, was.size, was.cost, was.resources)
        publish.deliveries = was.deliveries
        publish.retained = was.retained
        publish.persistent = was.persistent
        publish.exempt = (was.exempt and self._protected) or not self._protects
        publish.cost = max(1, was.cost - self._price(self._prices_then, was) + self._price(self._prices, was))
        return publish

    def _price(self, prices: Prices, publish: Publish) -> int:
        price = prices.of(publish.size, publish.deliveries, publish.retained, publish.qos)
        return price + prices.stored(publish.persistent)

    def _throttle(self, sender: Sender, first: Arrived, verdict: Verdict, now: float) -> None:
        reason = verdict.reason
        assert isinstance(reason, PauseReason)
        if sender.since == NOT_WAITING:
            sender.since = now
        sender.throttled = verdict
        sender.waiting = None
        self._throttled += 1
        self.tally.throttled(sender.number, sender.account.client, reason.label)
        if first.shut and verdict.gate is None and reason is PauseReason.GATE:
            sender.as_recorded = True
            self._later.add(int((sender.since + self._settings.wait) / SLOT) + 1, sender)
        elif verdict.gate is not None:
            sender.waiting = next(one.waiting for one in self._resources if one.gate is verdict.gate)
            sender.waiting.add(sender, sender.account, sender.since, verdict.until, now)
        elif reason is PauseReason.CREDITS:
            self._credits.add(sender, sender.account, sender.since, verdict.until, verdict.needed, now)
        else:
            self._later.add(int(verdict.until / SLOT) + 1, sender)

    def _wake(self, now: float) -> None:
        for resource in self._resources:
            if len(resource.waiting):
                self._release_all(of_gate(resource.waiting, resource.gate, now), now)
        if len(self._credits):
            self._release_all(self._credits.take(self._contended, now), now)
        later = self._later.take(int(now / SLOT))
        for sender in later:
            assert isinstance(sender, Sender)
            if not sender.as_recorded:
                sender.since = now  # a wait at a gate begins after that for a quota
        self._release_all(later, now)

    def _release_all(self, senders: list[object], now: float) -> None:
        for sender in senders:
            assert isinstance(sender, Sender)
            self._release(sender, now)

    def _release(self, sender: Sender, now: float) -> None:
        self._resume(sender)
        self._serve(sender, now)

    def _resume(self, sender: Sender) -> None:
        """End the throttling of *sender*."""
        throttled = sender.throttled
        assert throttled is not None
        if sender.waiting is not None:
            sender.waiting.remove(sender)
        elif sender.as_recorded:
            self._later.remove(int((sender.since + self._settings.wait) / SLOT) + 1, sender)
        elif throttled.reason is PauseReason.CREDITS:
            self._credits.remove(sender, throttled.needed)
        else:
            self._later.remove(int(throttled.until / SLOT) + 1, sender)
        sender.throttled = None
        sender.as_recorded = False
        self._throttled -= 1
        self.tally.resume(sender.number)

    def _lose(self, sender: Sender) -> None:
        """Count the unread publishes of *sender* as lost."""
        lost = sum(arrived.count for arrived in sender.arrived)
        sender.arrived.clear()
        sender.since = NOT_WAITING
        self._waiting -= lost
        self.tally.lost(lost)

    def _sync_signals(self, resources: dict[str, int]) -> None:
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
        """Return the lag here; *then* is the recorded lag."""
        self._steps.append(self._done_then)
        self._most = max(self._most, sum(self._steps) / BUSIEST)
        self._ahead += self._done_now - self._done_then
        spare = self._most - self._done_then
        self._done_then = self._done_now = 0
        if not self._most:
            return then
        if self._ahead > 0.0 and then < self._lag_target:  # the worker had idle time
            self._ahead = max(0.0, self._ahead - max(0.0, spare))
        second = self._most / STEP
        self._ahead = max(self._ahead, -then * second)
        return max(0.0, then + self._ahead / second)
