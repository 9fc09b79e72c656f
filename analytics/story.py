# The story of an episode or an incident: sentences for the operator about cause, culprits and effects.
#
# The story is made from the row alone, so a row that changes gets a new story. All times are UTC; the first sentence
# says so.
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from analytics import resources
from analytics.resources import ELSEWHERE, OTHER, resource_of
from analytics.rows import Hitter, Member, Overload, Slowed
from broker.insight.explain import place
from broker.insight.reason_words import SIGNALS, meaning

CONNECTS: Final = "connects"
MOST: Final = 3  # reasons, clients, nodes or resources in a sentence
HALF: Final = 0.5  # share of the work that is called most of it


def story(episode: Overload, members: Sequence[Member] = (), members_all: int = 0) -> list[str]:
    """Return the sentences, in the order in which an operator asks.

    *members*: the episodes of an incident, which has *members_all*.
    """
    sentences = [_what(episode), _how_high(episode)]
    if members_all > 1:
        sentences.append(_members(members, members_all))
    if episode["culprits"]:
        sentences.append(_culprits(episode))
    if episode["throttled_most"] or episode["throttled"]:
        sentences.append(_throttled(episode))
        if episode["slowed_nodes"] > 1:
            sentences.append(_slowed(episode))
    elif episode["paused_ms"] and episode["cause"] != CONNECTS:
        sentences.append(f"Clients were throttled for {_duration(episode['paused_ms'] / 1000)} in total.")
    if episode["connects"] and (episode["cause"] == CONNECTS or episode["connects_refused"]):
        sentences.append(_connects(episode))
    if episode["dropped"]:
        sentences.append(
            f"{_count(_sum(episode['dropped']), 'message was', 'messages were')} dropped: {_dropped(episode)}."
        )
    if episode["refused"]:
        refused = _sum(episode["refused"])
        sentences.append(f"{_count(refused, 'request was', 'requests were')} refused: {_reasons(episode['refused'])}.")
    if episode["interrupted"]:
        sentences.append(
            "The analysis lost its checkpoint during this overload: the end is the last second that it knew, "
            "and the overload may have lasted longer."
        )
    if episode["lost_seconds"]:
        lost = _count(episode["lost_seconds"], "record is", "records are")
        sentences.append(f"{lost} missing (each of one second of one worker): the real figures may be higher.")
    return sentences


def _what(episode: Overload) -> str:
    began = f"At {_clock(episode['start'])} UTC "
    cause, worker = episode["cause"], episode["cause_worker"]
    if episode["id"].partition(" ")[2] == ELSEWHERE:
        return f"{began}clients of worker {worker} were throttled because of a worker that has no records here."
    if cause == CONNECTS:
        return f"{began}more clients connected than can be accepted at once; most of them waited at worker {worker}."
    words = (
        SIGNALS[cause].words if cause in SIGNALS else meaning(cause) or f"{_place(cause)} was slower than without load"
    )
    return f"{began}worker {worker} became overloaded: {words} ({cause})."


def _place(resource: str) -> str:
    return place(resource) if " " in resource else f"worker {resource}"


def _how_high(episode: Overload) -> str:
    end, peak = episode["end"], episode["peak"]
    if end is None:
        duration = "The overload continues"
    else:
        duration = f"The overload ended at {_clock(end)}, after {_duration(end - episode['start'])}"
    if not peak:
        return f"{duration}; the overload level stayed 0."
    return f"{duration}; the level reached {peak} of 10 at {_clock(episode['peak_at'])}{_where(episode)}."


def _where(episode: Overload) -> str:
    nodes = len(episode["nodes"])
    more = " and more" if episode["further_nodes"] else ""
    return f"; {nodes}{more} nodes were affected" if nodes > 1 else ""


def _members(members: Sequence[Member], members_all: int) -> str:
    """Return a sentence about the resources of an incident: those with the highest peak, and how many more."""
    worst = sorted(members, key=lambda one: (-one["peak"], one["start"], one["id"]))[:MOST]
    named = [f"{resources.words(one['resource'])}{_because(one)} reached {one['peak']}" for one in worst]
    return f"It has {members_all} episodes: {_and_more(named, members_all)}."


def _because(member: Member) -> str:
    """Return the cause of *member* unless its resource says it."""
    cause = member["cause"]
    return f" ({cause})" if resource_of("", cause) != member["resource"] or member["resource"] == OTHER else ""


def _slowed(episode: Overload) -> str:
    named = [_slowed_node(one) for one in episode["slowed"][:MOST]]
    nodes = episode["slowed_nodes"]
    return f"Clients of {nodes} nodes were throttled, the longest at {_and_more(named, nodes)}."


def _slowed_node(one: Slowed) -> str:
    clients = (
        f", {_count(one['throttled_most'], 'client', 'clients')} at the same time" if one["throttled_most"] else ""
    )
    return f"{one['node'] or 'further nodes'} ({_duration(one['paused_ms'] / 1000)}{clients})"


def _and_more(named: list[str], number: int) -> str:
    left = number - len(named)
    return _list([*named, f"{_number(left)} more"] if left > 0 else named)


def _culprits(episode: Overload) -> str:
    named = [f"{each['name']} ({each['share']:.0%})" for each in episode["culprits"][:MOST]]
    shares = sum(each["share"] for each in episode["culprits"][:MOST])
    part = "Most" if shares > HALF else f"{shares:.0%}"
    return f"{part} of the work of the overloaded workers came from {_list(named)}."


def _throttled(episode: Overload) -> str:
    most = episode["throttled_most"]
    sentence = f"Up to {_count(most, 'client was', 'clients were')} throttled at the same time"
    if not most:
        sentence = "Clients were throttled"
    if episode["cause"] != CONNECTS:  # otherwise most of the time is that of waiting CONNECTs: see `_connects`
        sentence += f", for {_duration(episode['paused_ms'] / 1000)} in total"
    longest = [_paused(each) for each in episode["throttled"][:MOST]]
    return sentence + (f"; longest {_list(longest)}." if longest else ".")


def _paused(client: Hitter) -> str:
    return f"{client['name']} ({_duration(client['paused_ms'] / 1000)})"


def _connects(episode: Overload) -> str:
    arrived, refused = episode["connects"], episode["connects_refused"]
    sentence = f"{_count(arrived, 'CONNECT', 'CONNECTs')} arrived"
    waited = f" and waited for {_duration(episode['paused_ms'] / 1000)} in total"
    if episode["cause"] != CONNECTS or not episode["paused_ms"]:
        waited = ""
    return sentence + waited + (f"; {_number(refused)} of them were refused." if refused else "; none was refused.")


def _dropped(episode: Overload) -> str:
    most = _most(episode["dropped"])
    return _list([f"{_number(count)} {label} ({meaning(label) or 'unknown reason'})" for label, count in most])


def _reasons(counts: dict[str, int]) -> str:
    return _list([f"{_number(count)} {label}" for label, count in _most(counts)])


def _most(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:MOST]


def _sum(counts: dict[str, int]) -> int:
    return sum(counts.values())


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _count(count: int, one: str, many: str) -> str:
    return f"{_number(count)} {one if count == 1 else many}"


def _number(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
