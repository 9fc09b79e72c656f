# Where settings come from, in rising priority: the defaults, a TOML file, the environment, the command line.
#
# Each source becomes a list of Given: a key, the value as written, and words for the place. Everything after that is
# one path for all sources, so all of them refuse a mistake with the same sentence. A value is checked even where a
# later source overrides it: it would be in force as soon as the later one is removed.
import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from broker.config.applications import ApplicationRule
from broker.config.contradictions import contradictions
from broker.config.overrides import ClientOverride
from broker.config.schema import Config, ConfigError
from broker.config.values import ClientOptions, Kind

DEFAULT_FILE: Final = Path("/etc/weir/weir.toml")
PREFIX: Final = "WEIR_"
# Groups that workers do not get; clients.overrides, which can be reloaded, comes in frames of its own.
SUPERVISORS: Final = ("node.", "admin.", "clients.")

_TABLE: Final = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
_LIST: Final = re.compile(r"\s*\[\[([^\[\]]+)\]\]\s*(?:#.*)?")  # a table of a list of tables
_ENTRY: Final = re.compile(r"\s*([\w.\"' -]+?)\s*=")


@dataclass(frozen=True)
class Given:
    """One setting as it was written."""

    key: str  # "limits.packet_bytes"
    value: object
    source: str  # completes "... in": "weir.toml, line 12", "the environment (WEIR_LOG__LEVEL)", "--set"


@dataclass(frozen=True)
class Effective:
    """One setting in force."""

    key: str
    value: object
    text: str  # the value as the TOML file would have it
    source: str


@dataclass(frozen=True)
class Loaded:
    config: Config
    sources: Mapping[str, str]  # by key; absent keys have their default

    def describe(self) -> Iterator[Effective]:
        """Every setting with its value in force and its source, in the order of the groups, without passwords."""
        for key, kind in KINDS.items():
            value = _at(self.config, key)
            if isinstance(value, str):
                value = without_password(value)
            text = kind.show(value)
            value = dict(value) if key == "kafka.options" else _as_written(value)
            yield Effective(key, value, text, self.sources.get(key, "default"))


def load(
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    options: Iterable[Given] = (),
    default_file: Path = DEFAULT_FILE,
) -> Loaded:
    """The configuration in force. ConfigError.

    *file* must exist. Without *file*, *default_file* is read if it exists. *options* come from the command line.
    """
    given: list[Given] = []
    if file is not None or default_file.exists():
        given += from_file(file or default_file)
    given += from_environment(environ)
    given += options
    config = Config()
    sources: dict[str, str] = {}
    for one in given:
        config = _with(config, one.key.split("."), _taken(one))
        sources[one.key] = one.source
    for key, right in contradictions(config):
        value = KINDS[key].show(_at(config, key))
        raise ConfigError(f"{key} = {value} in {sources.get(key, 'the defaults')} is not valid: it must be {right}.")
    return Loaded(config, sources)


def without_password(text: str) -> str:
    """*text* with "***" for the password, if it is a URL with one."""
    scheme, separator, rest = text.partition("://")
    credentials, at, host = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return f"{scheme}://{user}:***@{host}" if separator and at and colon else text


def described(config: Config) -> dict[str, object]:
    """The settings that a worker needs, by key; `restored()` makes a configuration of them again."""
    return {key: _as_written(_at(config, key)) for key in KINDS if not key.startswith(SUPERVISORS)}


def _as_written(value: Any) -> Any:
    """*value*, with tables as in the file in place of what was made of them."""
    tables = isinstance(value, tuple) and value and isinstance(value[0], ClientOverride | ApplicationRule)
    return [one.described() for one in value] if tables else value


def restored(values: Mapping[str, object]) -> Config:
    """The configuration with *values* by key, as `described()` in the supervisor gave them. ConfigError."""
    config = Config()
    for key, value in values.items():
        config = _with(config, key.split("."), _taken(Given(key, value, "the supervisor's configuration")))
    return config


def from_file(file: Path) -> list[Given]:
    """The settings of a TOML file."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"Cannot read the configuration file {file}: {why}.") from None
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The configuration file {file} is not TOML: {error}.") from None
    lines = _lines(text)
    return [
        Given(key, value, f"{file}, line {lines[key]}" if key in lines else str(file))
        for key, value in _leaves(tree, "")
    ]


def from_environment(environ: Mapping[str, str]) -> list[Given]:
    """The settings among environment variables: WEIR_LIMITS__PACKET_BYTES is limits.packet_bytes.

    Other variables may begin with WEIR_ (Kubernetes makes WEIR_PORT for a service of that name), so a variable without
    "__" is ignored, unless it is a key with a wrong number of underscores.
    """
    given = []
    miscounted = {_variable(key).replace("__", "_"): key for key in KINDS}
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX):
            continue
        if "__" in name:
            given.append(Given(name[len(PREFIX) :].lower().replace("__", "."), value, f"the environment ({name})"))
        elif name in miscounted:
            right = _variable(miscounted[name])
            raise ConfigError(f"Unknown variable {name} = {value!r} in the environment: did you mean {right}?")
    return given


def from_assignments(assignments: Sequence[str]) -> list[Given]:
    """The settings of `--set key=value`."""
    given = []
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment} lacks a value: write --set key=value.")
        given.append(Given(key.strip(), value.strip(), "--set"))
    return given


def _kinds(group: Any, prefix: str) -> Iterator[tuple[str, Kind]]:
    for one in fields(group):
        inner = getattr(group, one.name)
        if is_dataclass(inner):
            yield from _kinds(inner, f"{prefix}{one.name}.")
        else:
            yield prefix + one.name, one.metadata["kind"]


KINDS: Final[Mapping[str, Kind]] = dict(_kinds(Config(), ""))


def _taken(one: Given) -> Any:
    kind = KINDS.get(one.key)
    if kind is None:
        raise ConfigError(f"Unknown setting {one.key} = {one.value!r} in {one.source}: {_nearest(one.key)}")
    try:
        return kind.take(one.value)
    except ValueError as error:
        raise ConfigError(f"{one.key} = {one.value!r} in {one.source} is not valid: it must be {error}.") from None


def _nearest(key: str) -> str:
    """A hint at the key that was probably meant by *key*."""
    near = difflib.get_close_matches(key, KINDS, n=1, cutoff=0.6)
    if not near:  # perhaps the right name in the wrong group
        last = key.rpartition(".")[2]
        near = [known for known in KINDS if known.rpartition(".")[2] == last]
    return f"did you mean {near[0]}?" if near else "`weir config show` lists those there are."


def _variable(key: str) -> str:
    return PREFIX + key.upper().replace(".", "__")


def _at(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _with(group: Any, path: Sequence[str], value: Any) -> Any:
    """A copy of *group* with the setting at *path* replaced."""
    inner = value if len(path) == 1 else _with(getattr(group, path[0]), path[1:], value)
    return replace(group, **{path[0]: inner})


def _leaves(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict) and not isinstance(KINDS.get(prefix + name), ClientOptions):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _lines(text: str) -> dict[str, int]:
    """The line number of each key, found by looking at single lines, as tomllib does not tell."""
    lines: dict[str, int] = {}
    table = ""
    for position, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.fullmatch(line):
            table = _plain(header[1]) + "."
        elif header := _LIST.fullmatch(line):
            lines.setdefault(_plain(header[1]), position)
            table = _plain(header[1]) + "[]."
        elif entry := _ENTRY.match(line):
            lines.setdefault(table + _plain(entry[1]), position)
    return lines


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))
