# Why a client is slow, gone, or gets no messages: the facts about the client, as sentences for a person.
#
# Each paragraph answers one question: how does the client stand, what throttles it and until when, what do its
# publishes cost, what is overloaded, how does it read, what was decided about it, how did it end. Advice follows what
# is wrong, and names the setting or the command. What is as it should be takes one sentence. The first paragraph names
# the client; in the others "it" is the client.
from shlex import quote
from typing import Final

from broker.insight.facts import (
    BackboneFacts,
    ConfiguredFacts,
    CreditFacts,
    EndFacts,
    Facts,
    HeldFacts,
    LevelFacts,
    LogFacts,
    PaceFacts,
    PublishFacts,
    ReaderFacts,
    SharedLogFacts,
    TurnFacts,
)
from broker.insight.reason_words import GATE_SETTING, SIGNALS, advice, words_of
from broker.overload.admit import CLOSE, DROP, FILTER, PAUSE, REFUSE, SUBACK
from broker.overload.level import backbone_lag_of, backbone_of, cold_of, store_rate_of
from broker.reasons import DropReason, PauseReason, StoreFailure

VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}
RECENT: Final = 5  # decisions that are shown
AT_PEACE: Final = 0.5  # of its target: a lower signal raises no level
STORE_WORDS: Final = {failure.label: failure.words for failure in StoreFailure}
STORE_RATE: Final = store_rate_of("")
COLD: Final = cold_of("")
BACKBONE: Final = backbone_of("")
BACKBONE_LAG: Final = backbone_lag_of("")
JUST_NOW: Final = 0.05  # seconds
BEHIND: Final = 1.0  # seconds of the inbound backbone that are worth a sentence
# Of a worker, as resources.
PARTS: Final = {
    "memory": "the memory of ",
    "outbound": "the outbound bytes of ",
    "store": "the store of ",
    "store memory": "the memory of the store of ",
    "store rate": "the store rate of ",
    "log": "the log of ",
    "cold sessions": "sessions that are read from Redis by ",
    "backbone": "the inbound backbone of ",
}

KINDS: Final = {  # once, and several times
    DROP: ("dropped a publish of it", "dropped {} publishes of it"),
    PAUSE: ("throttled it", "throttled it {} times"),
    REFUSE: ("refused a publish of it", "refused {} publishes of it"),
    CLOSE: ("closed its connection", "closed its connection {} times"),
    FILTER: ("refused a filter of it", "refused {} filters of it"),
    SUBACK: ("answered a SUBSCRIBE of it", "answered {} SUBSCRIBEs of it"),
}


def explain(facts: Facts) -> list[str]:
    """What *facts* mean, in paragraphs of whole sentences; the first says how the client stands."""
    paragraphs = [_stands(facts)]
    if facts["ended"] is not None or facts["refused"] is not None:
        paragraphs.append(_ends(facts))
    if facts["connection"] is not None:
        held = facts["held"]
        paragraphs.append(_free(facts) if held is None else _throttled(facts, held))
        if held is not None:
            paragraphs.append(_meanwhile(held))
        if facts["unacknowledged"] or (held is not None and facts["stores"]):
            paragraphs.append(_stores(facts))
        if facts["backbone"] is not None:
            paragraphs.append(_behind(facts["backbone"]))
        paragraphs.append(_costs(facts))
    if facts["override"] is not None:
        paragraphs.append(_override(facts))
    if facts["configured"] is not None:
        paragraphs.append(_configured(facts["configured"]))
    if facts["connection"] is not None or facts["connecting"] is not None:
        paragraphs.append(_level(facts))
    if facts["reader"] is not None:
        paragraphs.append(_reader(facts["reader"]))
    if facts["pace"] is not None:
        paragraphs.append(_pace(facts["pace"]))
    if facts["log"] is not None:
        paragraphs.append(_log(facts["log"]))
    if facts["losses"] or facts["untold"]:
        paragraphs.append(_lost(facts))
    if facts["decisions"]:
        paragraphs.append(_decided(facts))
    if facts["unanswered"]:
        paragraphs.append(f"Of this node, {_workers(facts['unanswered'])} did not answer, and may know more.")
    return [paragraph for paragraph in paragraphs if paragraph]


# How the client stands, and how its connections ended.


def _stands(facts: Facts) -> str:
    client, here = facts["client"], f"worker {facts['worker']} of node {facts['node']}"
    connection, connecting, session = facts["connection"], facts["connecting"], facts["session"]
    if connection is not None:
        version = VERSIONS.get(connection["version"], str(connection["version"]))
        user = f" as {connection['user']}" if connection["user"] else ""
        text = f"{client} has been connected{user} to {here} for {span(connection['age'])}"
        return f"{text}, from {connection['address']} over {connection['transport']} with MQTT {version}."
    if connecting is not None:
        text = f"The CONNECT of {client} has waited at {here} for {span(connecting['waited'])}:"
        text += f" {PauseReason.CONNECT.words}. {_count(connecting['waiting'], 'CONNECT')} wait there, and the next one"
        return f"{text} passes {_due(connecting['due'])}. {advice(PauseReason.CONNECT, client)}"
    if session is not None:
        filters = _count(session["subscriptions"], "filter")
        return f"{client} is not connected. Its session, with {filters}, is at {here}."
    if facts["ended"] is not None:
        return f"{client} is not connected, and has no session here."
    return f"{client} is not connected: its CONNECT was refused."


def _ends(facts: Facts) -> str:
    """The latest end first, as that is the one that is asked for."""
    told: list[tuple[float, str]] = []
    ended, refused = facts["ended"], facts["refused"]
    if ended is not None:
        told.append((ended["ago"], _end("Its last connection ended", ended, facts["client"])))
        if ended["undelivered"]:
            lost, reason = _count(ended["undelivered"], "message"), DropReason.SESSION_ENDED
            text = f"{lost} did not reach it ({reason.label}): {reason.words}. {advice(reason, facts['client'])}"
            told.append((ended["ago"], text))
    if refused is not None:
        told.append((refused["ago"], _end("A CONNECT in its name was refused", refused, facts["client"])))
    told.sort(key=_ago)
    return " ".join([text for _, text in told])


def _ago(told: tuple[float, str]) -> float:
    return told[0]


def _end(what: str, end: EndFacts, client: str) -> str:
    happened, helps = words_of(CLOSE, end["reason"], client)
    code = f", 0x{end['code']:02x}" if end["code"] else ""
    detail = f" Detail: {end['detail']}." if end["detail"] else ""
    text = f"{what} {span(end['ago'])} ago, from {end['address']}: {happened} ({end['reason']}{code}).{detail}"
    return f"{text} {helps}".rstrip()


# What throttles the client, and what its publishes cost.


def _free(facts: Facts) -> str:
    credits, override, configured = facts["credits"], facts["override"], facts["configured"]
    exempt = (override is not None and override["exempt"]) or (configured is not None and configured["exempt"])
    text = "Nothing throttles it." if facts["turns"] is None else _takes_turns(facts["turns"])
    if credits is not None and facts["level"]["enabled"] and not exempt:
        text += f" {_balance(credits)}"
        if credits["balance"] <= 0 and facts["level"]["level"] > 0.0:
            text += " It may publish nevertheless, while no resource that its publishes need is contended."
    for limit in facts["limits"]:
        _, _, what = limit["name"].lower().rpartition("_")
        counted = "bytes" if what == "bytes" else "messages"
        room = f"{max(0, int(limit['room']))} {counted} now"
        text += f" {_quota_name(limit['name'])} of {limit['rate']} allows {room}."
    return text


def _takes_turns(turns: TurnFacts) -> str:
    text = (
        f"It sends more than its worker serves in its turns: for {span(turns['behind'])} each turn has left something"
    )
    text += (
        f" for the next one. {_count(turns['ready'], 'client')} of the worker wait for their turns, and each gets the"
    )
    return f"{text} same share. More workers (node.workers) or nodes serve more."


def _throttled(facts: Facts, held: HeldFacts) -> str:
    happened, helps = words_of(PAUSE, held["reason"], facts["client"])
    limit = f" of {held['limit']}" if held["limit"] else ""
    told = [f"{_since(facts, held)} ({held['reason']}{limit}): {happened}."]
    if held["reason"] == PauseReason.CREDITS.label:
        told.append(_contention(facts))
    gate = held["gate"]
    if gate is not None and gate["resource"].endswith(STORE_RATE):
        told.append(
            "Its publish has durable receivers, and clients have as much stored as store.messages_per_second allows."
        )
    elif gate is not None and gate["resource"].endswith(COLD):
        told.append(f"Its publish is for {place(gate['resource'])}, and many publishes wait for such sessions.")
    elif gate is not None and gate["resource"].endswith(BACKBONE):
        told.append("The part of the inbound backbone that has its publishes takes none now.")
        if gate["trouble"]:
            told.append(f"It is in trouble: {gate['trouble']}.")
    elif gate is not None:
        publishes = f"{_count(gate['publishes'], 'publish', 'publishes')} ({size(gate['bytes'])})"
        waits = f"It waits for {place(gate['resource'])}, which has {publishes} to process first"
        told.append(f"{waits} and takes {span(gate['delay'])} longer than without load.")
        if gate["trouble"]:
            told.append(f"Nothing is appended there now: {gate['trouble']}.")
        elif gate["refuses"]:
            told.append("That worker is busy with other work, and accepts no publish for now.")
    told += [_resumes(held), helps]
    return " ".join([one for one in told if one])


def _meanwhile(held: HeldFacts) -> str:
    """The keep alive of the throttled client, and the bytes that it sent meanwhile."""
    if held["honoured"]:
        text = "Its keep alive is suspended meanwhile, and PINGREQs that were received are answered."
    else:
        text = "Its keep alive runs on meanwhile (overload.keepalive_while_throttled is strict)."
    if not held["unread"]:
        return text
    return (
        f"{text} {size(held['unread'])} that it sent wait in the worker. More may wait in the kernel, where a PINGREQ "
        "is not seen: a client that sends more than the worker buffers may give up by itself."
    )


def _stores(facts: Facts) -> str:
    """What was accepted and is not acknowledged, and the stores that do not store it now."""
    told = []
    count = facts["unacknowledged"]
    backbone = facts["backbone"] is not None
    has = "publish of it has" if count == 1 else "publishes of it have"
    if count and backbone:
        told.append(f"{count} {has} no acknowledgement yet: the inbound backbone has to store what it publishes first.")
    elif count:
        told.append(
            f"{count} {has} durable receivers and no acknowledgement yet: they have to acknowledge it first, or "
            "it has to be stored for them."
        )
    if facts["long"]:
        told.append(
            "Nothing further is read from it until then, as it has published for many sessions whose clients are away: "
            "they are read from Redis one after the other."
        )
    if facts["logged"] and backbone:
        told.append(
            "Nothing further is read from it until then, as the part of the inbound backbone that has its publishes "
            "takes long or cannot be used now."
        )
    elif facts["logged"]:
        told.append(
            "Nothing further is read from it until then, as it has published for APPLICATION clients, whose logs take "
            "long or cannot be used now."
        )
    told += [f"{_capital(place(log['resource']))} is in trouble: {log['why']}." for log in facts["logs"]]
    for store in facts["stores"]:
        why = STORE_WORDS[store["why"]]
        if store["needed"]:
            why += f" ({store['replicas']} of {store['needed']})"
        told.append(f"{_capital(place(store['resource']))} stores nothing now: {why}.")
    return " ".join(told)


def _behind(backbone: BackboneFacts) -> str:
    """How long what the client publishes takes to reach receivers, beyond its acknowledgement."""
    if backbone["lag"] < BEHIND:
        return ""
    records = _count(backbone["behind"], "record")
    return (
        f"Receivers get what is published later: in the inbound backbone the oldest publish has waited for "
        f"{span(backbone['lag'])}, and {records} are not done."
    )


def _log(log: LogFacts) -> str:
    text = f"It is an APPLICATION client: its messages wait in the log {log['topic']}."
    if log["parting"]:
        text += " It will be a DEVICE, as its last CONNECT says, once it has been sent all that waits there."
    if log["trouble"]:
        text += f" That cannot be used now: {log['trouble']}. What is published for it is acknowledged when it can."
    return " ".join([text, *map(_shared_log, log["shared"])])


def _shared_log(shared: SharedLogFacts) -> str:
    name, reads = f"$share/{shared['name']}/{shared['filter']}", len(shared["reads"])
    text = f"Of {name} it reads {reads} of {shared['partitions']} partitions of {shared['topic']}"
    if shared["waits"]:
        text += f": {shared['waits']}, so other members have them"
    if shared["trouble"]:
        text += f"; that log cannot be used now: {shared['trouble']}"
    return f"{text}."


def _since(facts: Facts, held: HeldFacts) -> str:
    """Since when. A client that has credits for one publish at a time is throttled between any two of them."""
    latest = facts["decisions"][-1] if facts["decisions"] else None
    if latest is not None and latest["reason"] == held["reason"] and latest["times"] > 1:
        return f"It is throttled, {latest['times']} times within the last {span(latest['first'])}"
    return f"It has been throttled for {span(held['since'])}"


def _resumes(held: HeldFacts) -> str:
    due = held["due"]
    if due is not None:
        text = f"It continues {_due(due)}"
        if held["reason"] == PauseReason.CREDITS.label and due >= JUST_NOW:
            text += ", or as soon as the resource has no other work"
    elif held["reason"] == PauseReason.STORE.label:
        text = "It continues as soon as that is stored"
    else:
        text = "It continues as soon as the resource has room"
    patience = held["patience"]
    if patience is None:
        return f"{text}."
    return f"{text}. If that takes more than {span(patience)}, the publish is not accepted (overload.wait)."


def _contention(facts: Facts) -> str:
    told = []
    for one in facts["contended"]:
        resource, by = place(one["resource"]), f"worker {one['worker']} of node {one['node']}"
        signal = _signal(one["signal"], one["value"], one["target"])
        told.append(f"It needs {resource}, which is overloaded. The report of {by}: {signal}.")
    return " ".join(told)


def _costs(facts: Facts) -> str:
    publish, prices, credits = facts["publish"], facts["prices"], facts["credits"]
    if publish is None:
        text = f"A publish of it costs {prices['publish']} credits, 1 for each {prices['bytes_per_credit']} bytes,"
        text += f" {prices['delivery']} for each receiver,"
        if prices["stored"]:
            text += f" {prices['stored']} more for each that stores it,"
        text += f" {prices['qos']} times its QoS,"
        text += f" and {prices['retained']} if it is retained (overload.cost)."
        if facts["level"]["enabled"] and facts["level"]["level"] == 0.0:
            text += " At level 0, credits throttle only clients whose publishes need a busy worker."
        return text
    needs = " and ".join([place(name) for name in publish["needs"] if not _part(name)])
    text = _cost(publish)
    if publish["waits"] and credits is not None:
        text += f" {_balance(credits)}"
        if 2 * publish["cost"] > credits["cap"]:
            text += f" As that is more than half of the maximum, {credits['cap'] // 2} credits are enough."
    return f"{text} It needs {needs}."


def _balance(credits: CreditFacts) -> str:
    return f"It has {credits['balance']} of {credits['cap']} credits, and gets {credits['refill']:.0f} every 200 ms."


def _cost(publish: PublishFacts) -> str:
    which = "The publish that waits" if publish["waits"] else "The last publish that overload protection judged"
    text = f"{which} costs {_count(publish['cost'], 'credit')}: {publish['base']} for any publish"
    parts = (
        (publish["for_bytes"], f"for its {_count(publish['size'], 'byte')}"),
        (publish["for_deliveries"], f"for its {_count(publish['receivers'], 'receiver')}"),
        (publish["for_storing"], f"for storing it for {_count(publish['stored'], 'receiver')}"),
        (publish["for_qos"], "for its QoS"),
        (publish["for_retaining"], "as it is retained"),
    )
    for credits, why in parts:
        if credits:
            text += f", {credits} {why}"
    return f"{text}."


def _override(facts: Facts) -> str:
    override = facts["override"]
    if override is None:
        return ""
    what = []
    if override["rate"]:
        what.append(f"it may publish {override['rate']}")
    if override["exempt"]:
        what.append("credits do not throttle it")
    text = f"An administrator ({override['by']}) decided that {' and '.join(what)}, for {span(override['left'])} more"
    return f"{text}: {override['reason']}. `weir limit drop {quote(facts['client'])}` ends that."


def _configured(configured: ConfiguredFacts) -> str:
    where = f"[[clients.overrides]], {configured['by']} {quote(configured['name'])}"
    text = f"The configuration has other limits for it than for other clients ({where}): {configured['settings']}."
    return f"{text} Credits do not throttle it." if configured["exempt"] else text


# What is overloaded.


def _level(facts: Facts) -> str:
    level = facts["level"]
    if not level["enabled"]:
        return (
            "Overload protection is switched off (overload.enabled): credits throttle no client. Gates, which bound "
            "memory, and quotas still do."
        )
    shown = _rounded_up(level["level"])
    if shown == 0:
        return "The overload level is 0: nothing is overloaded."
    return f"The overload level is {shown} of 10. {_cause(level)}"


def _cause(level: LevelFacts) -> str:
    by = f"worker {level['cause_worker']} of node {level['cause_node']}"
    if not level["cause"]:
        return f"It falls, as the overload of {by} is over."
    setting = _setting(level["cause"])
    if level["value"] < AT_PEACE:
        return f"It falls, as the signal {level['cause']} of {by} is below its target ({setting}) again."
    signal = _signal(level["cause"], level["value"], level["target"])
    return f"The cause is the signal {level['cause']} of {by}: {signal} ({setting})."


def _signal(name: str, value: float, target: float) -> str:
    """What the signal *name* measures, at *value* times its target."""
    signal = SIGNALS.get(name)
    words = f"{place(name)} takes longer than without load" if signal is None else signal.words
    if signal is not None and signal.counted:
        return f"{words}, {_count(round(value * target), signal.counted)} a short time ago"
    amount = f"{100 * value * target:.0f} %" if signal is not None and signal.share else span(value * target)
    return f"{words}, {amount}, which is {value:.2g} times the target"


def _setting(name: str) -> str:
    signal = SIGNALS.get(name)
    return GATE_SETTING if signal is None else signal.setting


# How the client reads, and what was decided.


def _reader(reader: ReaderFacts) -> str:
    unsent, stalled = reader["unsent"], reader["stalled"]
    if reader["writable"] and stalled is None and not reader["waiting"]:
        rest = f", and {size(unsent)} are about to be sent" if unsent else ""
        return f"It reads all that it is sent{rest}."
    text = f"{size(unsent)} wait to be sent to it, and {reader['waiting']} of at most {reader['may_wait']} messages"
    text += " are queued behind them."
    if not reader["writable"]:
        marks = f"over delivery.high_watermark ({size(reader['high'])}) and not yet below the low one"
        text = f"It reads too slowly. {text} It was {marks} ({size(reader['low'])}): QoS 0 is skipped meanwhile."
    elif reader["unacknowledged"] >= reader["window"]:
        text += f" It has {reader['unacknowledged']} messages to acknowledge first, its receive maximum."
    if stalled is not None and stalled > JUST_NOW:
        limit = f"after {span(reader['patience'])} its connection is closed (delivery.slow_consumer_timeout)"
        text += f" It has read nothing for {span(stalled)}; {limit}."
    return text


def _pace(pace: PaceFacts) -> str:
    rates = [_count(pace["messages"], "message")] if pace["messages"] else []
    rates += [size(pace["bytes"])] if pace["bytes"] else []
    left = (
        f"{_count(pace['left'], 'message')} {'is' if pace['left'] == 1 else 'are'} left. New messages come behind them."
    )
    if not rates:
        return f"It was away, and is sent what waited for it first: {left}"
    return (
        f"It was away, and what waited for it is delivered at no more than {' and '.join(rates)} a second "
        f"(delivery.replay_messages, delivery.replay_bytes): {left}"
    )


def _lost(facts: Facts) -> str:
    told = []
    for one in reversed(facts["losses"]):
        label = one["reason"]
        happened, helps = words_of(DROP, label, facts["client"])
        lost = f"{_count(one['count'], 'message')} did not reach it, {_ago_between(one['first'], one['last'])}"
        told.append(f"{lost} ({label}): {happened}. {helps}")
    if facts["untold"]:
        told.append(f"It is still to be told of {_count(facts['untold'], 'lost message')}, by a gap notice.")
    return " ".join(told)


def _decided(facts: Facts) -> str:
    held = facts["held"]
    decisions = facts["decisions"][-RECENT:]
    if held is not None and decisions[-1]["kind"] == PAUSE and decisions[-1]["reason"] == held["reason"]:
        decisions = decisions[:-1]  # an earlier paragraph says that it is throttled
    if not decisions:
        return ""
    told = []
    for one in reversed(decisions):
        once, often = KINDS[one["kind"]]
        what = once if one["times"] == 1 else often.format(one["times"])
        when = _ago_between(one["first"], one["last"])
        happened, _ = words_of(one["kind"], one["reason"], facts["client"])
        told.append(f"{when} Weir {what} ({one['reason']}): {happened}")
    helps: list[str] = []
    for one in decisions:
        helping = words_of(one["kind"], one["reason"], facts["client"])[1]
        if helping and helping not in helps:
            helps.append(helping)
    return f"Recent decisions: {'; '.join(told)}. {' '.join(helps)}".rstrip()


# Words.


def _quota_name(name: str) -> str:
    """For a name such as QUOTA_SESSION_MESSAGES."""
    _, scope, what = name.lower().split("_")
    return f"Its quota quotas.{scope} ({what})" if scope == "session" else f"The quota quotas.{scope} ({what})"


def place(resource: str) -> str:
    """*resource*, such as "node/worker" or "node/worker memory", in words."""
    node, slash, rest = resource.rpartition("/")
    if not slash:
        node, lag, _ = resource.rpartition(BACKBONE_LAG)
        return f"dispatching from the inbound backbone of node {node}" if lag else resource
    worker, _, part = rest.partition(" ")
    return f"{PARTS.get(part, '')}worker {worker} of node {node}"


def _part(resource: str) -> bool:
    """Whether *resource* is the memory, the outbound bytes or the store of a worker that is a resource itself."""
    return " " in resource.rpartition("/")[2]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def span(seconds: float) -> str:
    """A time, with about two digits, in the unit that suits."""
    if seconds < 0.95:
        return f"{max(0.0, seconds) * 1e3:.0f} ms"
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800.0 else f"{seconds / 86_400:.0f} days"


def _ago_between(first: float, last: float) -> str:
    """When something happened once or several times, *first* and *last* seconds ago."""
    earliest, latest = span(first), span(last)
    return f"{latest} ago" if earliest == latest else f"between {earliest} and {latest} ago"


def size(count: int) -> str:
    """A number of bytes, in the unit that suits."""
    if count < 10_000:
        return _count(count, "byte")
    return f"{count / 1024:.0f} KiB" if count < 10 << 20 else f"{count / (1 << 20):.0f} MiB"


def _due(seconds: float) -> str:
    return "at once" if seconds < JUST_NOW else f"in {span(seconds)}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _workers(numbers: list[int]) -> str:
    listed = ", ".join([str(number) for number in numbers])
    return f"worker {listed}" if len(numbers) == 1 else f"workers {listed}"


def _rounded_up(level: float) -> int:
    return -int(-level // 1)
