# The story of an episode: sentences for whoever is on call, who wants to know what it was, who, and what became of it.
#
# It is told from the row alone, so that a row that is amended gets the story that fits it.
from datetime import UTC, datetime
from typing import Final

from analytics.rows import Episode, Hitter
from broker.insight.reason_words import SIGNALS, meaning

CONNECTS: Final = "connects"
MOST: Final = 3  # reasons, or clients, that are named


def story(episode: Episode) -> list[str]:
    """What happened, in the order in which one asks."""
    told = [_what(episode), _how_high(episode)]
    if episode["culprits"]:
        told.append(_who(episode))
    if episode["throttled_most"] or episode["throttled"]:
        told.append(_held(episode))
    elif episode["paused_ms"] and episode["cause"] != CONNECTS:
        told.append(f"Clients were held back for {_lasting(episode['paused_ms'] / 1000)} in all.")
    if episode["connects"] and (episode["cause"] == CONNECTS or episode["connects_refused"]):
        told.append(_came(episode))
    if episode["dropped"]:
        told.append(f"{_count(_sum(episode['dropped']), 'message was', 'messages were')} dropped: {_dropped(episode)}.")
    if episode["refused"]:
        refused = _sum(episode["refused"])
        told.append(f"{_count(refused, 'request was', 'requests were')} refused: {_reasons(episode['refused'])}.")
    if episode["lost_seconds"]:
        lost = _count(episode["lost_seconds"], "record is", "records are")
        told.append(f"{lost} missing, a second of one worker each: it may have been worse than this.")
    return told


def _what(episode: Episode) -> str:
    began = f"At {_clock(episode['start'])} "
    cause, worker = episode["cause"], episode["cause_worker"]
    if cause == CONNECTS:
        return f"{began}more clients connected than can be let in at once, most of them waiting at worker {worker}."
    words = (
        SIGNALS[cause].words if cause in SIGNALS else meaning(cause) or f"worker {cause} was slower than without load"
    )
    return f"{began}worker {worker} became overloaded: {words} ({cause})."


def _how_high(episode: Episode) -> str:
    end, peak = episode["end"], episode["peak"]
    if end is None:
        lasted = "It goes on"
    else:
        lasted = f"It was over at {_clock(end)}, after {_lasting(end - episode['start'])}"
    if not peak:
        return f"{lasted}; no level was raised by it."
    return f"{lasted}; the level reached {peak} of 10 at {_clock(episode['peak_at'])}{_where(episode['nodes'])}."


def _where(nodes: list[str]) -> str:
    return f", and {len(nodes)} nodes took part" if len(nodes) > 1 else ""


def _who(episode: Episode) -> str:
    named = [f"{each['name']} ({each['share']:.0%})" for each in episode["culprits"][:MOST]]
    return f"Most of the work came from {_list(named)}."


def _held(episode: Episode) -> str:
    most = episode["throttled_most"]
    told = f"To protect the rest, {_count(most, 'client was', 'clients were')} held back at once at most"
    if not most:
        told = "To protect the rest, clients were held back"
    if episode["cause"] != CONNECTS:  # else nearly all of it is the time that CONNECTs waited, which is told of them
        told += f", for {_lasting(episode['paused_ms'] / 1000)} in all"
    longest = [_paused(each) for each in episode["throttled"][:MOST]]
    return told + (f"; longest {_list(longest)}." if longest else ".")


def _paused(client: Hitter) -> str:
    return f"{client['name']} ({_lasting(client['paused_ms'] / 1000)})"


def _came(episode: Episode) -> str:
    came, refused = episode["connects"], episode["connects_refused"]
    told = f"{_count(came, 'CONNECT', 'CONNECTs')} came"
    waited = f", and they waited for {_lasting(episode['paused_ms'] / 1000)} in all"
    if episode["cause"] != CONNECTS or not episode["paused_ms"]:
        waited = ""
    return told + waited + (f"; {_number(refused)} of them were turned away." if refused else "; none was turned away.")


def _dropped(episode: Episode) -> str:
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
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"


def _lasting(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
