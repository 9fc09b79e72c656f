# `weir bench`: asks the load generator in cli/load for what the options say, and shows what came of it.
import enum
import json
import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.connecting import (
    CaFile,
    Insecure,
    Password,
    Tls,
    User,
    Version,
    endpoint_of,
    level_of,
    sayable,
)
from cli.options import GONE, INTERRUPTED, UNREACHABLE, refuse

if TYPE_CHECKING:
    from cli.endpoint import Endpoint
    from cli.load.plan import Plan

WINDOW: Final = 100  # messages in flight of one publisher, where neither --rate nor --window says otherwise
SECONDS: Final = 10.0  # of publishing, where nothing says how long
FASTEST: Final = 10_000_000  # a second: nothing here gets there
NOTHING_MEASURED: Final = "ended by Ctrl-C before there was a result."
MANY: Final = 10  # publishers or subscribers, where a pattern has many of them


class Pattern(enum.StrEnum):
    PAIRS = "pairs"
    FAN_OUT = "fan-out"
    FAN_IN = "fan-in"


Address = Annotated[
    str,
    typer.Argument(metavar="HOST[:PORT]", help="The broker, or a URL: mqtt(s)://HOST:PORT, ws(s)://HOST:PORT/PATH."),
]
Patterns = Annotated[
    Pattern,
    typer.Option(
        help="pairs: what a publisher sends goes to subscribers of its own. fan-out: all publish to one topic, and all "
        "subscribers get it. fan-in: each publishes to a topic of its own, and all subscribers get them all."
    ),
]
Publishers = Annotated[int | None, typer.Option(min=0, metavar="N", show_default="10; fan-out: 1")]
Subscribers = Annotated[
    int | None, typer.Option(min=0, metavar="N", show_default="one a publisher; fan-out: 10; fan-in: 1")
]
Topic = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="%i in it is the publisher's number.", show_default="one nobody else uses"),
]
Qos = Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Of publishing and of subscribing.")]
Payload = Annotated[int, typer.Option(metavar="BYTES", help="Of each message, at least 16.")]
Rate = Annotated[
    float,
    typer.Option(
        min=0,
        max=FASTEST,
        metavar="N",
        show_default="none",
        help="Messages a second, of all publishers together. Latency counts from the time at which a message was to "
        "be sent, so a broker that stalls cannot hide it.",
    ),
]
Window = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Instead of a rate: messages under way, of each publisher.", show_default="100"
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(min=0, metavar="S", help="How long to publish.", show_default="10, unless --messages is given"),
]
Messages = Annotated[
    int, typer.Option(min=0, metavar="N", help="How many messages to publish, in all.", show_default="no end")
]
ConnectRate = Annotated[
    float,
    typer.Option(
        min=0, max=FASTEST, metavar="N", help="Connections a second.", show_default="as fast as they are answered"
    ),
]
Processes = Annotated[
    int, typer.Option(min=0, metavar="N", help="Of the load generator.", show_default="as many as it needs")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def bench(
    address: Address = "localhost",
    pattern: Patterns = Pattern.PAIRS,
    publishers: Publishers = None,
    subscribers: Subscribers = None,
    topic: Topic = None,
    qos: Qos = 1,
    payload: Payload = 64,
    version: Version = "5",
    rate: Rate = 0,
    window: Window = 0,
    seconds: Seconds = None,
    messages: Messages = 0,
    connect_rate: ConnectRate = 0,
    processes: Processes = 0,
    user: User = None,
    password: Password = None,
    tls: Tls = False,
    cafile: CaFile = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Load any broker, and measure throughput, latency and losses.

    Ctrl-C ends it early, with the results so far.

    Exit codes: 0 when it was measured, 2 when that cannot be done,
    4 when no broker is there or it refuses, 5 when it went away meanwhile,
    130 after Ctrl-C.
    """
    from cli.load.plan import BadPlan, Plan, enough_processes

    if rate and window:
        refuse("either --rate or --window: with both it is not said who sets the pace.")
    run = secrets.token_bytes(4)
    many, few = _sizes(pattern, publishers, subscribers)
    try:
        plan = Plan(
            pattern=pattern.value,
            publishers=many,
            subscribers=few,
            topic=topic or f"weir-bench/{run.hex()}/{'all' if pattern == Pattern.FAN_OUT else '%i'}",
            qos=qos,
            payload=payload,
            version=level_of(version),
            rate=rate,
            window=0 if rate else window or WINDOW,
            seconds=seconds if seconds is not None else 0.0 if messages else SECONDS,
            messages=messages,
            connect_rate=connect_rate,
            processes=processes or enough_processes(pattern.value, many, few, rate),
            run=run,
            client_id=f"wb-{run.hex()}",  # MQTT 3.1 has 23 characters for an id
            user=sayable("--user", user),
            password=None if password is None else (sayable("--password", password) or "").encode(),
        )
        plan.check()
    except BadPlan as error:
        refuse(str(error))
    _measure(plan, endpoint_of(address, None, tls, cafile, insecure), as_json)


def _sizes(pattern: Pattern, publishers: int | None, subscribers: int | None) -> tuple[int, int]:
    """How many publishers and subscribers."""
    if publishers is None:
        publishers = 1 if pattern == Pattern.FAN_OUT else MANY
    if subscribers is None:
        subscribers = {Pattern.PAIRS: publishers, Pattern.FAN_OUT: MANY, Pattern.FAN_IN: 1}[pattern]
    return publishers, subscribers


def _measure(plan: "Plan", endpoint: "Endpoint", as_json: bool) -> None:
    from cli.bench_view import Progress, render
    from cli.endpoint import Unreachable
    from cli.load.conductor import Conductor
    from cli.load.plan import BadPlan
    from cli.load.report import summarise

    try:
        with Progress(plan, sys.stderr) as progress:
            observed = Conductor(plan, endpoint, progress).run()
    except BadPlan as error:
        refuse(str(error))
    except Unreachable as error:
        refuse(str(error), UNREACHABLE)
    except KeyboardInterrupt:
        refuse(NOTHING_MEASURED, INTERRUPTED)
    if not observed.processes:
        refuse(NOTHING_MEASURED, INTERRUPTED)
    summary = summarise(plan, observed)
    if as_json:
        typer.echo(json.dumps({"broker": str(endpoint), **plan.as_json(), **summary.as_json()}))
    else:
        render(plan, endpoint, summary)
    if summary.interrupted:
        raise typer.Exit(INTERRUPTED)
    if summary.gone or summary.connections_missing:
        refuse(f"{endpoint} went away before the end; these are the results so far.", GONE)
