# A policy: the settings of [overload] that somebody wants to try on what was recorded.
#
# It is read by what reads the broker's own configuration, so a mistake is the same sentence. What a policy does not
# name stays as it was when the trace was recorded: so a file of one line tries that line and nothing else.
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from broker.config.schema import Config, ConfigError, Overload, contradictions
from broker.config.sources import KINDS, from_file, restored

GROUP: Final = "overload."
UNSEEN: Final = (  # what they do is not in a trace, which has publishes alone
    "overload.connects_per_second",
    "overload.connect_burst",
    "overload.connects_waiting",
    "overload.keepalive_while_throttled",
    "overload.accounts",
    "overload.trace",
)


@dataclass(frozen=True)
class Policy:
    name: str  # of its file
    settings: Mapping[str, Any]  # by key, checked: only those that it names
    notes: tuple[str, ...] = ()  # sentences about what of it is left out

    def over(self, recorded: Mapping[str, Any]) -> Overload:
        """All settings, with those that were in force when it was *recorded* where this has none. ConfigError."""
        config = restored({**recorded, **self.settings})
        for key, right in contradictions(replace(Config(), overload=config.overload)):
            raise ConfigError(f"{key} cannot be so in the policy {self.name}: it must be {right}.")
        return config.overload


def read_policy(file: Path) -> Policy:
    """The policy in a TOML file; ConfigError."""
    given = from_file(file)
    for one in given:
        kind = KINDS.get(one.key)
        if kind is None:
            # As a configuration is refused: with the nearest key.
            restored({one.key: one.value})
        else:
            try:
                kind.take(one.value)
            except ValueError as error:
                raise ConfigError(
                    f"{one.key} = {one.value!r} in {one.source} is not valid: it must be {error}."
                ) from None
    ours = {one.key: KINDS[one.key].take(one.value) for one in given if one.key.startswith(GROUP)}
    if not ours:
        raise ConfigError(f"There is no policy in {file}: it needs a table [overload] with the settings to try.")
    notes = [f"{key} is no part of it, as a trace has publishes alone." for key in ours if key in UNSEEN]
    rest = sorted({one.key.partition(".")[0] for one in given if not one.key.startswith(GROUP)})
    if rest:
        notes.append(
            f"{', '.join(f'[{table}]' for table in rest)} in {file} is left out: only [overload] can be tried."
        )
    tried = {key: value for key, value in ours.items() if key not in UNSEEN}
    return Policy(file.stem, tried, tuple(notes))
