# `weir bench`: runs the load generator of cli/load as the options say, and shows the results.
import enum
import json
import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.broker_options import (
    CaFile,
    Insecure,
    Password,
    Tls,
    User,
    Version,
    connect_string,
    endpoint_of,
    level_of,
)
from cli.options import GONE, INTERRUPTED, UNREACHABLE, refuse

if TYPE_CHECKING:
    from cli.endpoint import Endpoint
    from cli.load.plan import Plan

WINDOW: Final = 100  # unacknowledged messages per publisher, without --rate and --window
SECONDS: Final = 10.0  # of publishing, without --seconds and --messages
FASTEST: Final = 10_000_000  # messages a second: beyond what any machine reaches
NOTHING_MEASURED: Final = "interrupted by Ctrl-C before there was a result."
MANY: Final = 10  # default number of publishers or subscribers on the "many" side of a pattern


class Pattern(enum.StrEnum):
    PAIRS = "pairs"
    FAN_OUT = "fan-out"
    FAN_IN = "fan-in"


Address = Annotated[
    str,
    typer.Argument(
        metavar="HOST[:PORT]", help="Broker address, or a URL: mqtt(s)://HOST:PORT, ws(s)://HOST:PORT/PATH."
    ),
]
Patterns = Annotated[
    Pattern,
    typer.Option(
        help="pairs: each publisher has its own topic and its own subscribers. fan-out: all publishers share one topic "
        "that all subscribers receive. fan-in: each publisher has its own topic; each subscriber receives all."
    ),
]
Publishers = Annotated[int | None, typer.Option(min=0, metavar="N", show_default="10; fan-out: 1")]
Subscribers = Annotated[
    int | None, typer.Option(min=0, metavar="N", show_default="one per publisher; fan-out: 10; fan-in: 1")
]
Topic = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Topic; %i stands for the publisher's number.", show_default="a unique one"),
]
Qos = Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="QoS of publishes and subscriptions.")]
Payload = Annotated[int, typer.Option(metavar="BYTES", help="Payload size in bytes (at least 16).")]
Rate = Annotated[
    float,
    typer.Option(
        min=0,
        max=FASTEST,
        metavar="N",
        show_default="none",
        help="Open loop: messages a second over all publishers. Latency counts from the time at which a message was "
        "due, so a stalled broker cannot hide its delay.",
    ),
]
Window = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Closed loop: unacknowledged messages per publisher.", show_default="100"),
]
Seconds = Annotated[
    float | None,
    typer.Option(min=0, metavar="S", help="Publish for S seconds.", show_default="10, unless --messages is given"),
]
Messages = Annotated[int, typer.Option(min=0, metavar="N", help="Publish N messages in all.", show_default="unlimited")]
ConnectRate = Annotated[
    float,
    typer.Option(
        min=0,
        max=FASTEST,
        metavar="N",
        help="New connections a second.",
        show_default="as fast as the broker accepts them",
    ),
]
Processes = Annotated[
    int, typer.Option(min=0, metavar="N", help="Processes of the load generator.", show_default="as many as needed")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
    """Load an MQTT broker, and measure throughput, latency and losses.

    Ctrl-C stops the run and prints the results so far.

    Exit codes: 0 measured, 2 invalid request, 4 no broker there, or it
    refused, 5 connection lost, 130 Ctrl-C.
    """
    from cli.load.plan import BadPlan, Plan, enough_processes

    if rate and window:
        refuse("either --rate (open loop) or --window (closed loop), not both.")
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
            user=connect_string("--user", user),
            password=None if password is None else (connect_string("--password", password) or "").encode(),
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
        refuse(f"the connection to {endpoint} was lost before the end; these are the results so far.", GONE)
