# The kinds of values that settings have: how a value is written, what it may not exceed, and how it is shown.
#
# A value comes from a TOML file (with a type) or from the command line or the environment (always a str); each kind
# accepts both. A kind refuses a value with a ValueError that says what would be right: the caller knows the key and the
# source, and makes one sentence of the three.
import math
import re
import tomllib
from typing import Any, Final, Protocol

from broker.config.client_ids import RIGHT as CLIENT_ID_RULES
from broker.config.client_ids import ClientIdRule
from broker.config.rate import RateError, parse
from broker.config.tenants import RIGHT as TENANT_RULES
from broker.config.tenants import TenantRule

KIB: Final = 1024
MIB: Final = 1024 * 1024

_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS: Final = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": 1024**3,
}
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)
BROKERS: Final = 'a list of HOST:PORT such as ["kafka-1:9092", "kafka-2:9092"]'
OPTIONS: Final = "a table with options of kafka-python about connections"

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}", re.ASCII)
_HOST: Final = re.compile(r"[0-9A-Za-z._:%-]+", re.ASCII)


class Kind(Protocol):
    """One kind of value."""

    def take(self, given: object) -> Any:
        """Parse *given*. ValueError, whose text completes "it must be ...": *given* is not valid."""
        ...

    def show(self, value: Any) -> str:
        """*value* as the TOML file would have it."""
        ...


class Flag:
    def take(self, given: object) -> bool:
        if isinstance(given, bool):
            return given
        if given in ("true", "false"):
            return given == "true"
        raise ValueError("true or false")

    def show(self, value: bool) -> str:
        return "true" if value else "false"


class Number:
    """A whole number."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def take(self, given: object) -> int:
        value = self._read(given)
        if value is None or not self._least <= value <= self._most:
            if self._least == self._most:
                raise ValueError(str(self._least))
            raise ValueError(f"a whole number from {self._least} to {self._most}")
        return value

    def _read(self, given: object) -> int | None:
        if isinstance(given, int) and not isinstance(given, bool):  # True is an int in Python
            return given
        if isinstance(given, str) and re.fullmatch("-?[0-9]{1,20}", given, re.ASCII):
            return int(given)
        return None

    def show(self, value: int) -> str:
        return str(value)


class Numbers:
    """A list of *count* whole numbers, or one str with commas."""

    def __init__(self, count: int, least: int, most: int) -> None:
        self._count = count
        self._number = Number(least, most)

    def take(self, given: object) -> tuple[int, ...]:
        listed = given.split(",") if isinstance(given, str) else given
        if not isinstance(listed, list | tuple) or len(listed) != self._count:
            raise ValueError(f"a list of {self._count} whole numbers")
        try:
            return tuple(self._number.take(one.strip() if isinstance(one, str) else one) for one in listed)
        except ValueError as error:
            raise ValueError(f"a list of {self._count} numbers, each {error}") from None

    def show(self, value: tuple[int, ...]) -> str:
        return "[" + ", ".join(map(str, value)) + "]"


class Factor:
    """A number with decimals."""

    def __init__(self, least: float, most: float) -> None:
        self._least = least
        self._most = most

    def take(self, given: object) -> float:
        value = _quantity(given, {}, bare=1.0)
        if value is None or not self._least <= value <= self._most:
            raise ValueError(f"a number from {self._least:g} to {self._most:g}")
        return value

    def show(self, value: float) -> str:
        return f"{value:g}"


class Duration:
    """Seconds, as a float."""

    def __init__(self, least: float, most: float) -> None:
        self._least = least
        self._most = most

    def take(self, given: object) -> float:
        value = _quantity(given, _DURATION_UNITS, bare=1.0)
        if value is None:
            raise ValueError('a duration such as 15, "500ms", "5m", "2h" or "7d"')
        if not self._least <= value <= self._most:
            raise ValueError(f"a duration from {_short(self._least)} to {_short(self._most)}")
        return value

    def show(self, value: float) -> str:
        return f'"{_short(value)}"' if value else "0"


class Size:
    """Bytes, as an int."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def take(self, given: object) -> int:
        value = _quantity(given, _SIZE_UNITS, bare=1.0)
        if value is None or value != int(value):
            raise ValueError('a size such as 1024, "64KiB" or "1MB"')
        if not self._least <= value <= self._most:
            raise ValueError(f"a size from {_bytes(self._least)} to {_bytes(self._most)}")
        return int(value)

    def show(self, value: int) -> str:
        text = _bytes(value)
        return text if text.isdigit() else f'"{text}"'


class Rates:
    """A rate, kept as text, which broker/config/rate.py parses again. "" is no limit."""

    def __init__(self, sizes: bool) -> None:
        self._sizes = sizes

    def take(self, given: object) -> str:
        if given == "":
            return ""
        text = given if isinstance(given, str) else repr(given)  # a bare number is not a rate
        try:
            parse(text, self._sizes)
        except RateError as error:
            raise ValueError(f'"", or {error.right}') from None
        return text

    def show(self, value: str) -> str:
        return f'"{value}"'


class Tenants:
    """The rule that finds the tenant of a client, kept as text, which broker/config/tenants.py parses again."""

    def take(self, given: object) -> str:
        if not isinstance(given, str) or not given.isprintable():
            raise ValueError(TENANT_RULES)
        if given:
            TenantRule(given)
        return given

    def show(self, value: str) -> str:
        return Text().show(value)


class ClientIdRules:
    """The rule that says which client ids a user may have, as text, which broker/config/client_ids.py parses again."""

    def take(self, given: object) -> str:
        if not isinstance(given, str) or not given.isprintable():
            raise ValueError(CLIENT_ID_RULES)
        if given:
            ClientIdRule(given)
        return given

    def show(self, value: str) -> str:
        return Text().show(value)


class Choice:
    def __init__(self, *options: str) -> None:
        self._options = options

    def take(self, given: object) -> str:
        if isinstance(given, str) and given in self._options:
            return given
        raise ValueError(", ".join(self._options[:-1]) + f" or {self._options[-1]}")

    def show(self, value: str) -> str:
        return f'"{value}"'


class Text:
    """A text on one line, such as a path; of at most *most* bytes in UTF-8, if that is not 0."""

    def __init__(self, most: int = 0) -> None:
        self._most = most

    def take(self, given: object) -> str:
        if isinstance(given, str) and given.isprintable() and (not self._most or len(given.encode()) <= self._most):
            return given
        raise ValueError(f"a text on one line{f' of at most {self._most} bytes' if self._most else ''}")

    def show(self, value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Name:
    """A name that is valid as a folder, a label and a word of a command line."""

    def take(self, given: object) -> str:
        if isinstance(given, str) and _NAME.fullmatch(given):
            return given
        raise ValueError("up to 64 letters, digits, dots, dashes and underscores, the first a letter or a digit")

    def show(self, value: str) -> str:
        return f'"{value}"'


class Hosts:
    """A list of addresses or names of this machine, or one str with commas."""

    def take(self, given: object) -> tuple[str, ...]:
        listed = given.split(",") if isinstance(given, str) else given
        if not isinstance(listed, list | tuple) or not listed:
            raise ValueError('a list of addresses such as ["127.0.0.1", "::1"]')
        hosts = tuple(host.strip() if isinstance(host, str) else "" for host in listed)
        if not all(_HOST.fullmatch(host) for host in hosts):
            raise ValueError('a list of addresses such as ["127.0.0.1", "::1"]')
        return hosts

    def show(self, value: tuple[str, ...]) -> str:
        return "[" + ", ".join(f'"{host}"' for host in value) + "]"


class Brokers:
    """A list of HOST:PORT, or one str with commas; it may be empty."""

    def take(self, given: object) -> tuple[str, ...]:
        listed = [one for one in given.split(",") if one.strip()] if isinstance(given, str) else given
        if not isinstance(listed, list | tuple):
            raise ValueError(BROKERS)
        brokers = tuple(one.strip() if isinstance(one, str) else "" for one in listed)
        for broker in brokers:
            host, _, port = broker.rpartition(":")
            if not _HOST.fullmatch(host.strip("[]")) or not (port.isascii() and port.isdigit() and int(port) <= 65535):
                raise ValueError(BROKERS)
        return brokers

    def show(self, value: tuple[str, ...]) -> str:
        return "[" + ", ".join(f'"{broker}"' for broker in value) + "]"


ClientOption = tuple[str, str | int | bool]


class ClientOptions:
    """Options of the Kafka client about connections, as a table; kept as pairs of name and value, in order."""

    def take(self, given: object) -> tuple[ClientOption, ...]:
        if isinstance(given, str):
            try:
                given = tomllib.loads(f"options = {given}")["options"]
            except tomllib.TOMLDecodeError:
                raise ValueError(f'{OPTIONS}, such as {{security_protocol = "SSL"}}') from None
        pairs = [*given.items()] if isinstance(given, dict) else given
        if not isinstance(pairs, list | tuple) or not all(
            isinstance(one, list | tuple) and len(one) == 2 for one in pairs
        ):
            raise ValueError(OPTIONS)
        return tuple(sorted(self._option(*pair) for pair in pairs))

    def _option(self, name: object, value: object) -> ClientOption:
        if not isinstance(name, str) or not re.fullmatch("security_protocol|(sasl|ssl)_[a-z_]+", name):
            raise ValueError(f"{OPTIONS}: security_protocol and those that begin with sasl_ or ssl_, and not {name}")
        if "password" in name:
            raise ValueError(f"{OPTIONS} without passwords: kafka.password_file names a file with that of SASL")
        if not isinstance(value, str | int):
            raise ValueError(f"{OPTIONS}, and {name} a text, a whole number, true or false")
        return name, value

    def show(self, value: tuple[ClientOption, ...]) -> str:
        return "{" + ", ".join(f"{name} = {self._show(one)}" for name, one in value) + "}"

    def _show(self, value: str | int | bool) -> str:
        if isinstance(value, bool):
            return Flag().show(value)
        return Text().show(value) if isinstance(value, str) else str(value)


def _quantity(given: object, units: dict[str, float] | dict[str, int], bare: float) -> float | None:
    """A number with one of *units*, or without (then in units of *bare*); None if *given* is neither."""
    if isinstance(given, bool):
        return None
    if isinstance(given, int | float):
        return given * bare if math.isfinite(given) else None
    found = _QUANTITY.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        return None
    unit = units.get(found[2]) if found[2] else bare
    return None if unit is None else float(found[1]) * unit


def _short(seconds: float) -> str:
    """A duration in the largest unit without a fraction: 604800.0 is 7d, 0.5 is 500ms."""
    for unit in ("d", "h", "m", "s", "ms"):
        count = seconds / _DURATION_UNITS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{seconds:g}s"


def _bytes(size: int) -> str:
    """A size in the largest binary unit without a fraction: 1048576 is 1MiB, 1000 stays 1000."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return str(size)
