# A policy: settings of [overload] to evaluate on recorded traces.
#
# The configuration code of the broker reads a policy, so mistakes give the same messages. Settings that a policy does
# not name stay as recorded: a file with one line changes one setting.
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from broker.config.contradictions import contradictions
from broker.config.schema import Config, ConfigError, Overload
from broker.config.sources import KINDS, from_file, restored

GROUP: Final = "overload."
UNSEEN: Final = (  # settings without effect here: a trace contains publishes only
    "overload.connects_per_second",
    "overload.connect_burst",
    "overload.connects_waiting",
    "overload.keepalive_while_throttled",
    "overload.accounts",
    "overload.trace",
)


@dataclass(frozen=True)
class Policy:
    name: str  # of the file
    settings: Mapping[str, Any]  # the named settings by key, validated
    notes: tuple[str, ...] = ()  # sentences about ignored settings

    def over(self, recorded: Mapping[str, Any]) -> Overload:
        """Return the *recorded* settings, changed by this policy. Raises ConfigError."""
        config = restored({**recorded, **self.settings})
        for key, right in contradictions(replace(Config(), overload=config.overload)):
            raise ConfigError(f"{key} is not valid in the policy {self.name}: it must be {right}.")
        return config.overload


def read_policy(file: Path) -> Policy:
    """Read a policy from a TOML file. Raises ConfigError."""
    given = from_file(file)
    for one in given:
        kind = KINDS.get(one.key)
        if kind is None:
            # Raises the error of an unknown key, which suggests the nearest one.
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
    notes = [f"{key} is ignored: a trace contains publishes only." for key in ours if key in UNSEEN]
    rest = sorted({one.key.partition(".")[0] for one in given if not one.key.startswith(GROUP)})
    if rest:
        notes.append(f"{', '.join(f'[{table}]' for table in rest)} in {file} is ignored: a policy has [overload] only.")
    tried = {key: value for key, value in ours.items() if key not in UNSEEN}
    return Policy(file.stem, tried, tuple(notes))
