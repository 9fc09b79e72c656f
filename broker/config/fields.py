# How a setting of schema.py is declared: a field of a dataclass, with its default and the kind of its value.
from dataclasses import field
from typing import Any, Final

from broker.config.values import (
    Brokers,
    Choice,
    ClientIdRules,
    ClientOption,
    ClientOptions,
    Duration,
    Factor,
    Flag,
    Hosts,
    Kind,
    Name,
    Number,
    Numbers,
    Rates,
    Size,
    Tenants,
    Text,
)

YEAR: Final = 365 * 86400.0
EXABYTE: Final = 1 << 60  # more than any machine has: no limit
ANY_NUMBER: Final = 1 << 40


def setting(default: Any, kind: Kind) -> Any:
    return field(default=default, metadata={"kind": kind})


def flag(default: bool) -> bool:
    value: bool = setting(default, Flag())
    return value


def number(default: int, *, least: int = 0, most: int = ANY_NUMBER) -> int:
    value: int = setting(default, Number(least, most))
    return value


def numbers(*default: int, least: int = 0, most: int = ANY_NUMBER) -> tuple[int, ...]:
    value: tuple[int, ...] = setting(default, Numbers(len(default), least, most))
    return value


def factor(default: float, *, least: float, most: float) -> float:
    value: float = setting(default, Factor(least, most))
    return value


def duration(default: float, *, least: float = 0.0, most: float = YEAR) -> float:
    value: float = setting(default, Duration(least, most))
    return value


def size(default: int, *, least: int = 0, most: int = EXABYTE) -> int:
    value: int = setting(default, Size(least, most))
    return value


def message_rate(default: str = "") -> str:
    value: str = setting(default, Rates(sizes=False))
    return value


def byte_rate(default: str = "") -> str:
    value: str = setting(default, Rates(sizes=True))
    return value


def tenant_rule(default: str = "") -> str:
    value: str = setting(default, Tenants())
    return value


def client_id_rule(default: str = "") -> str:
    value: str = setting(default, ClientIdRules())
    return value


def choice(default: str, *options: str) -> str:
    value: str = setting(default, Choice(*options))
    return value


def path(default: str = "") -> str:
    value: str = setting(default, Text())
    return value


def line(most: int) -> str:
    value: str = setting("", Text(most))
    return value


def name(default: str) -> str:
    value: str = setting(default, Name())
    return value


def hosts(*default: str) -> tuple[str, ...]:
    value: tuple[str, ...] = setting(default, Hosts())
    return value


def brokers() -> tuple[str, ...]:
    value: tuple[str, ...] = setting((), Brokers())
    return value


def client_options() -> tuple[ClientOption, ...]:
    value: tuple[ClientOption, ...] = setting((), ClientOptions())
    return value
