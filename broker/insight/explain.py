# Why a client is slow, gone, or gets nothing: what is known of it, in sentences for the person who asks.
#
# Each paragraph answers one question: how does it stand, what holds it back and until when, what do its publishes cost,
# what is overloaded, how does it read, what was decided about it, how did it end. What helps stands behind what is
# wrong, and names the setting or the command. What is as it should be gets one sentence.
from shlex import quote
from typing import Final

from broker.insight.facts import CreditFacts, EndFacts, Facts, HeldFacts, LevelFacts, PublishFacts, ReaderFacts
from broker.insight.reason_words import CLOSED, DROPPED, FILTERS, HELD, QUOTA, Words, quota_helps
from broker.overload.admit import CLOSE, DROP, FILTER, PAUSE, REFUSE
from broker.reasons import PauseReason

VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}
RECENT: Final = 5  # decisions that are told
AT_PEACE: Final = 0.5  # targets: what is lower raises no level
JUST_NOW: Final = 0.05  # seconds

# By the name of a signal: (what it says of a worker, {} being the value; the setting of its target).
SIGNALS: Final = {
    "lag": ("leaves a socket that has something for it waiting for {}", "overload.lag"),
    "outbound": ("owes its readers {} of its outbound budget", "overload.outbound_percent"),
    "memory": ("uses {} of its memory limit", "overload.memory_percent"),
    "connect": ("leaves a CONNECT waiting for {}", "overload.connect_delay"),
}
SESSION_ENDED: Final = "session_ended"
SHARES: Final = ("outbound", "memory")

KINDS: Final = {
    DROP: ("dropped a publish of it", "dropped {} publishes of it"),
    PAUSE: ("held it back", "held it back {} times"),
    REFUSE: ("refused a publish of it", "refused {} publishes of it"),
    CLOSE: ("closed its connection", "closed its connection {} times"),
    FILTER: ("refused a filter", "refused {} filters"),
}


def explain(facts: Facts) -> list[str]:
    """What *facts* mean, in paragraphs of whole sentences; the first says how the client stands."""
    found = [_stands(facts)]
    if facts["ended"] is not None or facts["refused"] is not None:
        found.append(_ends(facts))
    if facts["connection"] is not None:
        held = facts["held"]
        found.append(_free(facts) if held is None else _held(facts, held))
        if held is not None:
            found.append(_meanwhile(held))
        found.append(_costs(facts))
    if facts["override"] is not None:
        found.append(_override(facts))
    if facts["connection"] is not None or facts["connecting"] is not None:
        found.append(_level(facts))
    if facts["reader"] is not None:
        found.append(_reader(facts["reader"]))
    if facts["dropped"]:
        found.append(_dropped(facts))
    if facts["decisions"]:
        found.append(_decided(facts))
    if facts["unanswered"]:
        found.append(f"Of this node, {_workers(facts['unanswered'])} did not answer, and may know more.")
    return [paragraph for paragraph in found if paragraph]


# How it stands, and how it ended.


def _stands(facts: Facts) -> str:
    client, here = facts["client"], f"worker {facts['worker']} of node {facts['node']}"
    connection, connecting, session = facts["connection"], facts["connecting"], facts["session"]
    if connection is not None:
        version = VERSIONS.get(connection["version"], str(connection["version"]))
        user = f" as {connection['user']}" if connection["user"] else ""
        told = f"{client} is connected{user} at {here} for {span(connection['age'])}"
        return f"{told}, from {connection['address']} over {connection['transport']} with MQTT {version}."
    if connecting is not None:
        told = f"{client} wants to connect at {here}, and has waited {span(connecting['waited'])} for its turn:"
        told += f" {PauseReason.CONNECT.words}. {_count(connecting['waiting'], 'CONNECT')} wait there, and the next one"
        return f"{told} passes {_due(connecting['due'])}. {HELD['connect']}"
    if session is not None:
        return f"{client} is away. Its session is kept by {here}, with {_count(session['subscriptions'], 'filter')}."
    if facts["ended"] is not None:
        return f"{client} is not connected, and has no session here."
    return f"{client} is not connected: it was not let in."


def _ends(facts: Facts) -> str:
    """The later of its ends first: that is the one that is asked for."""
    told: list[tuple[float, str]] = []
    ended, refused = facts["ended"], facts["refused"]
    if ended is not None:
        told.append((ended["ago"], _end("Its last connection ended", ended)))
        if ended["undelivered"]:
            happened, helps = DROPPED[SESSION_ENDED]
            lost = f"{_count(ended['undelivered'], 'message')} did not reach it ({SESSION_ENDED}): {happened}. {helps}"
            told.append((ended["ago"], lost))
    if refused is not None:
        told.append((refused["ago"], _end("A CONNECT in its name was refused", refused)))
    told.sort(key=_ago)
    return " ".join([text for _, text in told])


def _ago(told: tuple[float, str]) -> float:
    return told[0]


def _end(what: str, end: EndFacts) -> str:
    happened, helps = CLOSED[end["reason"]]
    code = f", 0x{end['code']:02x}" if end["code"] else ""
    detail = f" In detail: {end['detail']}." if end["detail"] else ""
    told = f"{what} {span(end['ago'])} ago, from {end['address']}: {happened} ({end['reason']}{code}).{detail}"
    return f"{told} {helps}".rstrip()


# What holds it back, and what its publishes cost.


def _free(facts: Facts) -> str:
    credits, override = facts["credits"], facts["override"]
    told = "Nothing holds it back."
    if credits is not None and facts["level"]["enabled"] and not (override is not None and override["exempt"]):
        told += f" {_balance(credits)}"
        if credits["balance"] <= 0 and facts["level"]["level"] > 0.0:
            told += " It goes on all the same, while nothing that its publishes need is contended."
    for limit in facts["limits"]:
        _, _, what = limit["name"].lower().rpartition("_")
        counted = "bytes" if what == "bytes" else "messages"
        room = f"{max(0, int(limit['room']))} {counted} now"
        told += f" {_quota_name(limit['name'])} of {limit['rate']} leaves it {room}."
    return told


def _held(facts: Facts, held: HeldFacts) -> str:
    limit = f" of {held['limit']}" if held["limit"] else ""
    told = [f"{_since(facts, held)} ({held['reason']}{limit}): {_pause(held['reason']).words}."]
    if held["reason"] == PauseReason.CREDITS.label:
        told.append(_contention(facts))
    gate = held["gate"]
    if gate is not None:
        publishes = f"{_count(gate['publishes'], 'publish', 'publishes')} ({size(gate['bytes'])})"
        waits = f"It waits for {place(gate['resource'])}, which has {publishes} before it"
        told.append(f"{waits} and is {span(gate['delay'])} slower than without load.")
        if gate["refuses"]:
            told.append("That worker has much else to do, and lets no publish pass for now.")
    told += [_resumes(held), _helps(held["reason"], facts["client"])]
    return " ".join([one for one in told if one])


def _meanwhile(held: HeldFacts) -> str:
    """What becomes of it while it is held back."""
    if held["honoured"]:
        told = "Its keep alive does not run meanwhile, and its pings are answered as far as we have read them."
    else:
        told = "Its keep alive runs on meanwhile (overload.keepalive_while_throttled is strict)."
    if not held["unread"]:
        return told
    told += (
        f" We have {size(held['unread'])} of it that wait; more may lie in the kernel's buffers, where a ping is not"
    )
    return f"{told} seen: a client that sends more than we hold may give up by itself."


def _since(facts: Facts, held: HeldFacts) -> str:
    """Since when; who has credits for one publish after the other is held between any two of them."""
    latest = facts["decisions"][-1] if facts["decisions"] else None
    if latest is not None and latest["reason"] == held["reason"] and latest["times"] > 1:
        return f"It is held back, {latest['times']} times within the last {span(latest['first'])}"
    return f"It has been held back for {span(held['since'])}"


def _resumes(held: HeldFacts) -> str:
    due = held["due"]
    if due is not None:
        told = f"It goes on {_due(due)}"
        if held["reason"] == PauseReason.CREDITS.label and due >= JUST_NOW:
            told += ", or as soon as what it needs has nothing else to do"
    else:
        told = "It goes on as soon as there is room"
    patience = held["patience"]
    if patience is None:
        return f"{told}."
    return f"{told}. If that takes {span(patience)} more, its publish is given up (overload.wait)."


def _contention(facts: Facts) -> str:
    told = []
    for one in facts["contended"]:
        said = _signal(one["signal"], one["value"], one["target"])
        resource = place(one["resource"])
        by = f"worker {one['worker']} of node {one['node']}"
        told.append(f"It needs {resource}, which is overloaded: {'it' if by == resource else by} {said}.")
    return " ".join(told)


def _costs(facts: Facts) -> str:
    publish, prices, credits = facts["publish"], facts["prices"], facts["credits"]
    if publish is None:
        told = f"A publish of it costs {prices['publish']} credits, 1 for each {prices['bytes_per_credit']} bytes,"
        told += f" {prices['delivery']} for each receiver, {prices['qos']} times its QoS,"
        told += f" and {prices['retained']} if it is retained (overload.cost)."
        if facts["level"]["level"] == 0.0:
            told += " While the level is 0 they hold nobody back but from a worker that has much to do."
        return told
    needs = " and ".join([place(name) for name in publish["needs"]])
    told = _cost(publish)
    if publish["waits"] and credits is not None:
        told += f" {_balance(credits)}"
        if 2 * publish["cost"] > credits["cap"]:
            told += f" As it costs more than half of what can be saved, it passes from {credits['cap'] // 2} on."
    return f"{told} It needs {needs}."


def _balance(credits: CreditFacts) -> str:
    return f"It has {credits['balance']} of {credits['cap']} credits, and gets {credits['refill']:.0f} each 200 ms."


def _cost(publish: PublishFacts) -> str:
    which = "The publish that waits" if publish["waits"] else "The last publish of it that was judged"
    told = f"{which} costs {_count(publish['cost'], 'credit')}: {publish['base']} for any"
    parts = (
        (publish["for_bytes"], f"for its {_count(publish['size'], 'byte')}"),
        (publish["for_deliveries"], f"for its {_count(publish['receivers'], 'receiver')}"),
        (publish["for_qos"], "for its QoS"),
        (publish["for_retaining"], "as it is retained"),
    )
    for credits, why in parts:
        if credits:
            told += f", {credits} {why}"
    return f"{told}."


def _override(facts: Facts) -> str:
    override = facts["override"]
    if override is None:
        return ""
    what = []
    if override["rate"]:
        what.append(f"it may publish {override['rate']}")
    if override["exempt"]:
        what.append("overload protection does not hold it back")
    told = f"An administrator ({override['by']}) decided that {' and '.join(what)}, for {span(override['left'])} more"
    return f"{told}: {override['reason']}. `weir limit drop {quote(facts['client'])}` ends that."


# What is overloaded.


def _level(facts: Facts) -> str:
    level = facts["level"]
    if not level["enabled"]:
        return "Overload protection is switched off (overload.enabled), so only quotas hold anybody back."
    shown = _rounded_up(level["level"])
    if shown == 0:
        return "The overload level is 0: nothing is overloaded."
    return f"The overload level is {shown} of 10, as {_cause(level)}."


def _cause(level: LevelFacts) -> str:
    who = f"worker {level['cause_worker']} of node {level['cause_node']}"
    if not level["cause"]:
        return f"it still falls from what {who} had to do"
    if level["value"] < AT_PEACE:
        return (
            f"it still falls since {who} was over the target of its signal {level['cause']} "
            f"({_key(level['cause'])}), which it is not any more"
        )
    said = f"{who} {_signal(level['cause'], level['value'], level['target'])}"
    return f"{said} (the signal {level['cause']}, whose target {_key(level['cause'])} sets)"


def _signal(name: str, value: float, target: float) -> str:
    """What the signal *name* says of its worker, at *value* targets."""
    known = SIGNALS.get(name)
    amount = f"{100 * value * target:.0f} %" if name in SHARES else span(value * target)
    told = f"waits for {place(name)} for {{}} longer than without load" if known is None else known[0]
    return f"{told.format(amount)}, {value:.2g} times its target"


def _key(name: str) -> str:
    known = SIGNALS.get(name)
    return "overload.gate_delay" if known is None else known[1]


# How it reads, and what was decided.


def _reader(reader: ReaderFacts) -> str:
    unsent, stalled = reader["unsent"], reader["stalled"]
    if reader["writable"] and stalled is None and not reader["waiting"]:
        owed = f", and {size(unsent)} are about to be sent" if unsent else ""
        return f"It takes all that it is sent{owed}."
    told = f"It is owed {size(unsent)} that were not sent yet; behind that, {reader['waiting']} of at most"
    told += f" {reader['may_wait']} messages wait."
    if not reader["writable"]:
        marks = f"over delivery.high_watermark ({size(reader['high'])}) and not yet below the low one"
        told = f"It reads too slowly. {told} That was {marks} ({size(reader['low'])}): QoS 0 is skipped meanwhile."
    elif reader["unacknowledged"] >= reader["window"]:
        told += f" It has {reader['unacknowledged']} messages to acknowledge first, as many as it takes at once."
    if stalled is not None and stalled > JUST_NOW:
        close = f"after {span(reader['patience'])} of that it is closed (delivery.slow_consumer_timeout)"
        told += f" It took no byte for {span(stalled)}; {close}."
    return told


def _dropped(facts: Facts) -> str:
    told = []
    for label, count in facts["dropped"].items():
        happened, helps = words_of(DROP, label, facts["client"])
        told.append(f"{_count(count, 'message')} did not reach it in this session ({label}): {happened}. {helps}")
    return " ".join(told)


def _decided(facts: Facts) -> str:
    held = facts["held"]
    decisions = facts["decisions"][-RECENT:]
    if held is not None and decisions[-1]["kind"] == PAUSE and decisions[-1]["reason"] == held["reason"]:
        decisions = decisions[:-1]  # that it is held was told
    if not decisions:
        return ""
    told = []
    for one in reversed(decisions):
        once, often = KINDS[one["kind"]]
        what = once if one["times"] == 1 else often.format(one["times"])
        first, last = span(one["first"]), span(one["last"])
        when = f"{last} ago" if first == last else f"between {first} and {last} ago"
        happened, _ = words_of(one["kind"], one["reason"], facts["client"])
        told.append(f"{when} we {what} ({one['reason']}): {happened}")
    helps: list[str] = []
    for one in decisions:
        helping = words_of(one["kind"], one["reason"], facts["client"])[1]
        if helping and helping not in helps:
            helps.append(helping)
    return f"Lately: {'; '.join(told)}. {' '.join(helps)}".rstrip()


# Words.


def words_of(kind: int, label: str, client: str) -> Words:
    """What the reason with *label*, of a decision of *kind*, means for *client*, and what helps."""
    if kind == CLOSE:
        return CLOSED[label]
    if kind == FILTER and label in FILTERS:
        return FILTERS[label]
    if label in HELD or label.startswith(QUOTA):
        return _pause(label).words, _helps(label, client)
    return DROPPED[label]  # of a publish, dropping and refusing are alike


def _helps(label: str, client: str) -> str:
    named = quote(client)  # clients choose their ids, and what helps is a command to copy
    return HELD[label].replace("CLIENT", named) if label in HELD else quota_helps(label, named)


def _pause(label: str) -> PauseReason:
    return next(reason for reason in PauseReason if reason.label == label)


def _quota_name(name: str) -> str:
    """As QUOTA_SESSION_MESSAGES."""
    _, scope, what = name.lower().split("_")
    return f"Its quota quotas.{scope} ({what})" if scope == "session" else f"The quota quotas.{scope} ({what})"


def place(resource: str) -> str:
    """*resource*, as "node/worker", in words."""
    node, slash, worker = resource.rpartition("/")
    return f"worker {worker} of node {node}" if slash else resource


def span(seconds: float) -> str:
    """So long, with two digits or so."""
    if seconds < 0.95:
        return f"{max(0.0, seconds) * 1e3:.0f} ms"
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800.0 else f"{seconds / 86_400:.0f} days"


def size(count: int) -> str:
    """So many bytes, in the unit that suits."""
    if count < 10_000:
        return _count(count, "byte")
    return f"{count / 1024:.0f} KiB" if count < 10 << 20 else f"{count / (1 << 20):.0f} MiB"


def _due(seconds: float) -> str:
    return "at once" if seconds < JUST_NOW else f"in {span(seconds)}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _workers(numbers: list[int]) -> str:
    listed = ", ".join([str(number) for number in numbers])
    return f"worker {listed}" if len(numbers) == 1 else f"the workers {listed}"


def _rounded_up(level: float) -> int:
    return -int(-level // 1)
