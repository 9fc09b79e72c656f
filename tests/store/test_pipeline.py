# Commands to a real Redis: in order, in time, and whatever becomes of the server.
import select
from collections.abc import Callable
from pathlib import Path

import pytest
from hiredis import ReplyError

from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import (
    DISCONNECTED,
    HANDSHAKE,
    READY,
    REPLY,
    failure_of,
    packed,
    packed_numbers,
    packed_push,
)
from broker.store.redis.pipeline import MOST_BYTES, CallbackCommand, CommandPipeline
from supervisor.redis_server import RedisServer
from tests.cluster.paper import HANDSHAKE_REPLIES, on_paper
from tests.redis_servers import RunningRedis, free_port
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]
Told = list[tuple[object, StoreFailure | None]]

PATIENCE = 5.0


def connect(loop: Loop, address: RedisAddress, most: int = 1000, most_bytes: int = 1 << 20) -> CommandPipeline:
    commands = CommandPipeline(loop.wire(), address, "test", loop.log, most, most_bytes)
    loop.ticking.append(commands)
    commands.start(loop.now())
    return commands


def ask(loop: Loop, commands: CommandPipeline, *words: str | bytes | int, patience: float = PATIENCE) -> Told:
    """Ask; what is told is in the list that is returned, sooner or later."""
    told: Told = []
    commands.submit(
        CallbackCommand(packed(*words), patience, lambda reply, failure: told.append((reply, failure))), loop.now()
    )
    return told


def answer(loop: Loop, commands: CommandPipeline, *words: str | bytes | int, patience: float = PATIENCE) -> object:
    told = ask(loop, commands, *words, patience=patience)
    loop.until(lambda: len(told) > 0)
    (reply, failure), *more = told
    assert [] == more
    return reply if failure is None else failure


def test_replies_belong_to_their_commands(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """A claim would be answered with another one's epoch."""
    commands = connect(loop, start_redis(every_server).address)
    loop.ready(commands)
    told = [ask(loop, commands, "ECHO", str(number)) for number in range(500)]
    loop.until(lambda: all(told))

    assert [[(str(number).encode(), None)] for number in range(500)] == told
    assert (500, 0) == (commands.statistics.sent, commands.statistics.waiting)


@pytest.mark.parametrize("sizes", [[0], [1], [1023], [1024], [1 << 17], [3, 2000, 5]])
def test_what_is_pushed_is_sent_as_any_command(sizes: list[int]) -> None:
    for key in (b"queue", b"q" * 2000):
        values = [b"x" * size for size in sizes]
        assert packed("RPUSH", key, *values) == packed_push(key, values)


@pytest.mark.parametrize(
    "numbers",
    [
        [1],
        [9, 10, 99, 100, 999, 1000, 1001],
        [1000],
        [1999, 2000, 1998, 7, 123_456_789_012, 123_456_789_013],
        list(range(900, 2100)),
        list(range(65_535, 1, -701)),
    ],
)
def test_numbers_are_sent_as_any_command(numbers: list[int]) -> None:
    """Marks of QoS 2 messages would be those of others: a message would be lost, or delivered twice."""
    for key in (b"set", b"s" * 2000):
        assert packed("SADD", key, *numbers) == packed_numbers("SADD", key, tuple(numbers))


def test_commands_of_a_tick_leave_in_one_send(start_redis: StartRedis, loop: Loop) -> None:
    """Each command would cost a system call (DESIGN section 2, point 1)."""
    commands = connect(loop, start_redis().address)
    loop.ready(commands)
    (wire,) = loop.wires
    before = wire.sends
    told = [ask(loop, commands, "PING") for _ in range(100)]
    loop.until(lambda: all(told))

    assert 1 == wire.sends - before


def test_a_command_waits_for_the_connection(start_redis: StartRedis, loop: Loop) -> None:
    """The first clients after a start would be refused, though Redis is there a millisecond later."""
    commands = connect(loop, start_redis().address)

    assert HANDSHAKE == commands.state
    assert b"early" == answer(loop, commands, "ECHO", "early")


def test_tcp_serves_as_well(start_redis: StartRedis, loop: Loop) -> None:
    """Only a Redis on this machine could be used."""
    commands = connect(loop, start_redis(port=free_port()).address)

    assert b"x" == answer(loop, commands, "ECHO", "x")


def test_nobody_there_fails_after_the_patience_and_not_before(tmp_path: Path, loop: Loop) -> None:
    """A CONNECT would wait for ever, or be refused while Redis is being started."""
    commands = connect(loop, RedisAddress(path=str(tmp_path / "nobody.sock")))
    began = loop.now()

    assert StoreFailure.TIMEOUT is answer(loop, commands, "PING", patience=0.3)
    assert loop.now() - began >= 0.3
    assert [StoreFailure.UNREACHABLE.label] == [facts["reason"] for facts in loop.log.named("redis_unavailable")]


def test_a_refused_tcp_connection_is_tried_again(start_redis: StartRedis, loop: Loop) -> None:
    """A Redis that is started after the broker would never be found."""
    port = free_port()
    commands = connect(loop, RedisAddress(host="127.0.0.1", port=port))
    loop.until(lambda: commands.state == DISCONNECTED)
    start_redis(port=port)

    assert b"x" == answer(loop, commands, "ECHO", "x")


def test_a_stopped_server_is_noticed_and_found_again(start_redis: StartRedis, loop: Loop) -> None:
    """SIGSTOP: connections to it succeed, and nothing is answered; all must go on by itself after SIGCONT."""
    server = start_redis()
    commands = connect(loop, server.address)
    loop.ready(commands)
    server.pause()
    began = loop.now()

    assert StoreFailure.TIMEOUT is answer(loop, commands, "SET", "k", "1", patience=0.3)
    assert commands.unresponsive_for(loop.now()) >= 0.3
    loop.until(lambda: commands.state != READY)
    assert loop.now() - began >= 3.0
    assert StoreFailure.TIMEOUT is answer(loop, commands, "PING", patience=0.3)
    server.go_on()
    loop.ready(commands)
    assert b"1" == answer(loop, commands, "GET", "k")  # it was asked, and did it, whoever was still waiting
    assert 0.0 == commands.unresponsive_for(loop.now())


def test_a_reply_that_waits_in_a_busy_worker_is_not_late(loop: Loop) -> None:
    """Clients of a busy worker would be refused, and their claims repeated, although Redis has answered in time."""
    commands, paper = on_paper(loop)
    commands.receive(HANDSHAKE_REPLIES, 1000, 0.0)
    told: Told = []
    for _ in range(3):
        commands.submit(
            CallbackCommand(packed("PING"), 0.3, lambda reply, failure: told.append((reply, failure))), now=0.0
        )
    commands.receive(b"+one\r\n+two\r\n", 1, now=0.1)  # the round has time for one of them
    commands.tick(0.2)
    due = commands.tick(0.4)

    assert ([(b"one", None)], 0.4, 0.0) == (told, due, commands.unresponsive_for(0.4))
    paper.waiting = True  # the third one is in the socket
    commands.receive(b"", 1000, now=0.45)
    commands.tick(0.6)
    assert [(b"one", None), (b"two", None)] == told
    paper.waiting = False
    commands.tick(0.7)
    assert [(None, StoreFailure.TIMEOUT)] == told[2:]


def test_a_busy_worker_does_not_take_redis_for_silent(loop: Loop) -> None:
    """All that it has asked would be lost with the connection, and the next one would be as late."""
    commands, paper = on_paper(loop)
    commands.receive(HANDSHAKE_REPLIES, 1000, 0.0)
    told: Told = []
    commands.submit(CallbackCommand(packed("PING"), 9.0, lambda reply, failure: told.append((reply, failure))), now=0.0)
    paper.waiting = True
    for now in (0.2 * turn for turn in range(20)):
        commands.tick(now)
    commands.receive(b"+PONG\r\n", 1000, now=4.0)

    assert ([(b"PONG", None)], READY) == (told, commands.state)


def test_who_was_asleep_hears_what_was_said_meanwhile(start_redis: StartRedis, loop: Loop) -> None:
    """After Ctrl-Z and fg a worker would take Redis for dead, and turn clients away."""
    server = start_redis()
    commands = connect(loop, server.address)
    loop.ready(commands)
    loop.stop_clock()
    answers = ask(loop, commands, "ECHO", "hello", patience=0.1)
    (wire,) = loop.wires
    wire.flush(loop.now())
    assert wire.sock is not None
    assert select.select([wire.sock], [], [], PATIENCE)[0]
    loop.stop_clock(later=10.0)
    loop.until(lambda: bool(answers))

    assert [(b"hello", None)] == answers
    assert 1 == commands.times_ready


def test_a_late_reply_is_nobody_elses(start_redis: StartRedis, loop: Loop) -> None:
    """After a pause of Redis each reply would be taken for the next command's."""
    server = start_redis()
    commands = connect(loop, server.address)
    loop.ready(commands)
    server.pause()
    late = [ask(loop, commands, "ECHO", f"late{n}", patience=0.1) for n in range(3)]
    patient = ask(loop, commands, "ECHO", "patient")
    loop.until(lambda: all(late))
    server.go_on()
    loop.until(lambda: bool(patient))

    assert [[(None, StoreFailure.TIMEOUT)]] * 3 == late
    assert [(b"patient", None)] == patient
    assert b"next" == answer(loop, commands, "ECHO", "next")


def test_a_killed_server_fails_what_was_asked_and_keeps_what_was_not(start_redis: StartRedis, loop: Loop) -> None:
    """A command would wait for a reply that cannot come, or one that was never sent would be given up for nothing."""
    server = start_redis()
    commands = connect(loop, server.address)
    loop.ready(commands)
    server.pause()
    asked = ask(loop, commands, "PING")
    loop.turn()
    server.kill()
    loop.until(lambda: bool(asked))
    waiting = ask(loop, commands, "ECHO", "still")
    server.start()
    loop.until(lambda: bool(waiting))

    assert [(None, StoreFailure.LOST)] == asked
    assert [(b"still", None)] == waiting
    assert ["redis_connected", "redis_unavailable", "redis_connected"] == [
        name for name, facts in loop.log.events if facts.get("reason") != StoreFailure.UNREACHABLE.label
    ]


@pytest.mark.parametrize("limits", [{"most": 10}, {"most_bytes": 10 * len(packed("ECHO", "x" * 100))}])
def test_what_waits_is_bounded(start_redis: StartRedis, loop: Loop, limits: dict[str, int]) -> None:
    """A Redis that hangs would fill the worker's memory."""
    server = start_redis()
    commands = connect(loop, server.address, **limits)
    loop.ready(commands)
    server.pause()
    told = [ask(loop, commands, "ECHO", "x" * 100) for _ in range(12)]

    assert [[]] * 10 + [[(None, StoreFailure.BACKLOG_FULL)]] * 2 == told
    server.go_on()
    loop.until(lambda: all(told))
    assert b"again" == answer(loop, commands, "ECHO", "again")
    assert {StoreFailure.BACKLOG_FULL: 2} == commands.statistics.failures


def test_commands_that_gave_up_unsent_leave_room(tmp_path: Path, loop: Loop) -> None:
    """After a long outage everything would fail as BACKLOG_FULL for ever."""
    commands = connect(loop, RedisAddress(path=str(tmp_path / "nobody.sock")), most=10)
    for _ in range(3):
        told = [ask(loop, commands, "PING", patience=0.01) for _ in range(10)]
        loop.until(lambda told=told: all(told))  # type: ignore[misc]

        assert [[(None, StoreFailure.TIMEOUT)]] * 10 == told
    loop.turn()
    assert 0 == commands.statistics.waiting


@pytest.mark.parametrize(
    ("more", "password", "reason"),
    [
        ("requirepass secret\n", "", StoreFailure.AUTHENTICATION_FAILED),
        ("requirepass secret\n", "wrong", StoreFailure.AUTHENTICATION_FAILED),
        ("user default on nopass ~* +ping\n", "", StoreFailure.FORBIDDEN),
    ],
)
def test_who_is_not_let_in_says_so_once(
    start_redis: StartRedis, loop: Loop, more: str, password: str, reason: StoreFailure
) -> None:
    """The log would not say why Redis is not used, or say it each second."""
    server = start_redis(more=more)
    server.address.password = password
    commands = connect(loop, server.address)

    assert StoreFailure.TIMEOUT is answer(loop, commands, "PING", patience=0.5)
    (said,) = loop.log.named("redis_unavailable")
    assert (reason.label, reason.words) == (said["reason"], said["why"])
    assert "wrong" not in str(loop.log.events)


def test_the_right_password_lets_in(start_redis: StartRedis, loop: Loop) -> None:
    """A protected Redis could not be used."""
    server = start_redis(more="requirepass secret\nuser weir on >word ~* &* +@all\n")
    for user, password in (("", "secret"), ("weir", "word")):
        server.address.user, server.address.password = user, password

        assert b"in" == answer(loop, connect(loop, server.address), "ECHO", "in")


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFailure.MEMORY_FULL),
        ("@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.", StoreFailure.MEMORY_FULL),
        ("EXECABORT Transaction discarded because of: OOM command not allowed", StoreFailure.MEMORY_FULL),
        ("EXECABORT Transaction discarded because of previous errors.", StoreFailure.REFUSED),
        ("ERR an OOM of another kind", StoreFailure.REFUSED),
    ],
)
def test_an_error_is_known_wherever_its_code_is(text: str, failure: StoreFailure) -> None:
    """A server that is full only at the end of a transaction would be taken for one that will never carry it out."""
    assert failure is failure_of(ReplyError(text))


def test_a_full_server_refuses_and_keeps_the_connection(start_redis: StartRedis, loop: Loop) -> None:
    """Each write to a full Redis would cost a reconnection, and its reads as well."""
    server = start_redis()
    commands = connect(loop, server.address)
    assert b"OK" == answer(loop, commands, "CONFIG", "SET", "maxmemory", 1)

    assert StoreFailure.MEMORY_FULL is answer(loop, commands, "SET", "k", "v")
    assert None is answer(loop, commands, "GET", "k")
    assert 1 == commands.times_ready
    assert StoreFailure.MEMORY_FULL is answer(loop, commands, "EVAL", "return redis.call('SET', 'k', 'v')", 0)


def test_a_replica_is_left_for_another_server(start_redis: StartRedis, loop: Loop) -> None:
    """After a failover the workers would go on asking the server that takes no writes."""
    master, replica = start_redis(port=free_port()), start_redis(port=free_port())
    commands = connect(loop, replica.address)
    assert b"OK" == answer(loop, commands, "REPLICAOF", master.address.host, master.address.port)

    assert StoreFailure.READ_ONLY is answer(loop, commands, "SET", "k", "v")
    loop.until(lambda: commands.state == DISCONNECTED)
    commands.move(master.address, loop.now())
    assert b"OK" == answer(loop, commands, "SET", "k", "v")


def test_what_loads_is_not_ready(start_redis: StartRedis, loop: Loop) -> None:
    """Claims would fail for as long as Redis reads its file, instead of waiting for it."""
    server = start_redis(more="key-load-delay 200\n")  # microseconds
    with server.client() as filled:  # while it loads it looks at its connections after each 1024 commands
        pipeline = filled.pipeline(transaction=False)
        for number in range(5000):
            pipeline.set(f"key{number}", "x")
        pipeline.execute()
    server.kill()
    server.start(loaded=False)
    commands = connect(loop, server.address)
    asked = ask(loop, commands, "GET", "key4999")
    loop.until(lambda: bool(asked))

    assert [(b"x", None)] == asked
    assert [StoreFailure.LOADING.label] == [facts["reason"] for facts in loop.log.named("redis_unavailable")]


# Without a server: what the wire would bring, byte by byte.


def test_replies_are_taken_within_the_quantum(loop: Loop) -> None:
    """What follows from a thousand replies at once would hold the loop (DESIGN section 7, rule 1)."""
    commands, _ = on_paper(loop)
    commands.receive(HANDSHAKE_REPLIES, 1000, 0.0)
    told: Told = []
    for _ in range(10):
        question = CallbackCommand(packed("PING"), 1.0, lambda reply, failure: told.append((reply, failure)))
        commands.submit(question, 0.0)
    units = commands.receive(b"+PONG\r\n" * 10, 3 * REPLY, 0.0)

    assert (3 * REPLY, 3, True) == (units, len(told), commands.more_replies)
    while commands.more_replies:
        commands.receive(b"", 3 * REPLY, 0.0)
    assert [(b"PONG", None)] * 10 == told


def test_a_reply_takes_as_much_as_what_follows_from_it(loop: Loop) -> None:
    """A thousand clients would be let in at once, as each of their claims counted like a small publish."""
    commands, _ = on_paper(loop)
    commands.receive(HANDSHAKE_REPLIES, 1000, 0.0)
    told: Told = []
    for _ in range(10):
        question = CallbackCommand(packed("PING"), 1.0, lambda reply, failure: told.append((reply, failure)))
        question.units = 100 * REPLY
        commands.submit(question, 0.0)

    assert 200 * REPLY == commands.receive(b"+PONG\r\n" * 10, 150 * REPLY, 0.0)
    assert (2, True) == (len(told), commands.more_replies)


def test_replies_may_be_cut_anywhere(loop: Loop) -> None:
    """A reply at the end of a read would be lost, or read as another."""
    commands, _ = on_paper(loop)
    told: Told = []
    for _ in range(2):
        question = CallbackCommand(packed("GET", "k"), 1.0, lambda reply, failure: told.append((reply, failure)))
        commands.submit(question, 0.0)
    for byte in HANDSHAKE_REPLIES + b"$5\r\nab\r\nc\r\n$-1\r\n":
        commands.receive(bytes([byte]), 1000, 0.0)

    assert [(b"ab\r\nc", None), (None, None)] == told


def test_half_a_reply_ends_with_its_connection(loop: Loop) -> None:
    """The first reply on a new connection would be glued to the last of the old one."""
    commands, paper = on_paper(loop)
    commands.receive(HANDSHAKE_REPLIES + b"$5\r\nab", 1000, 0.0)
    commands.lost("cut", 1.0)
    commands.tick(2.0)
    assert paper.written == packed("CLIENT", "SETNAME", "test") + packed("PING")
    commands.receive(HANDSHAKE_REPLIES, 1000, 2.0)

    assert READY == commands.state


def test_what_was_sent_is_not_sent_again(loop: Loop) -> None:
    """A command that the server may have done would be done twice."""
    commands, paper = on_paper(loop)
    told: Told = []
    commands.submit(
        CallbackCommand(packed("INCR", "k"), 9.0, lambda reply, failure: told.append((reply, failure))), 0.0
    )
    commands.receive(HANDSHAKE_REPLIES, 1000, 0.0)
    assert packed("INCR", "k") in paper.written
    commands.lost("cut", 1.0)
    commands.tick(2.0)
    commands.receive(HANDSHAKE_REPLIES, 1000, 2.0)

    assert [(None, StoreFailure.LOST)] == told
    assert packed("INCR", "k") not in paper.written
    assert 0 == commands.statistics.waiting


def test_each_pause_is_longer_than_the_last_up_to_a_second(loop: Loop) -> None:
    """A Redis that is down would be dialled without a rest, or found minutes after it is back."""
    commands, _ = on_paper(loop)
    now, pauses = 0.0, []
    for _ in range(8):
        commands.lost("refused", now)
        pauses.append(round(commands.tick(now) - now, 3))
        now += pauses[-1]
        commands.tick(now)
    assert [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0] == pauses
    commands.receive(HANDSHAKE_REPLIES, 1000, now)
    commands.lost("again", now)

    assert 0.05 == pytest.approx(commands.tick(now) - now)


def test_a_greeting_that_is_not_answered_is_given_up(loop: Loop) -> None:
    """A stopped server accepts: the worker would wait for it though another is there meanwhile."""
    commands, _ = on_paper(loop)
    assert 1.0 == commands.tick(0.0)
    commands.tick(1.0)

    assert DISCONNECTED == commands.state


def test_who_fails_may_ask_again_at_once(loop: Loop) -> None:
    """A claim that is given up asks again, with another patience: the line would fail on its own list."""
    commands, _ = on_paper(loop)
    told: Told = []

    def again(reply: object, failure: StoreFailure | None) -> None:
        told.append((reply, failure))
        if len(told) < 4:
            commands.submit(CallbackCommand(packed("PING"), len(told) / 10, again), len(told) * 10.0)

    commands.submit(CallbackCommand(packed("PING"), 0.05, again), 0.0)
    for now in (1.0, 11.0, 21.0, 31.0, 41.0):
        commands.tick(now)
        commands.tick(now)  # after so long a pause nothing is late at the first look

    assert [(None, StoreFailure.TIMEOUT)] * 4 == told


def test_the_largest_command_passes_when_nothing_waits(loop: Loop) -> None:
    """A claim with a large will would be refused for ever."""
    commands, paper = on_paper(loop)
    commands.receive(HANDSHAKE_REPLIES, 1000, 0.0)
    told: Told = []
    large = CallbackCommand(b"x" * (MOST_BYTES + 1), 1.0, lambda reply, failure: told.append((reply, failure)))
    commands.submit(large, 0.0)

    assert [] == told
    assert paper.written.endswith(b"x" * (MOST_BYTES + 1))
    commands.submit(CallbackCommand(b"x", 1.0, lambda reply, failure: told.append((reply, failure))), 0.0)
    assert [(None, StoreFailure.BACKLOG_FULL)] == told


def test_a_reply_to_nothing_ends_the_connection(loop: Loop) -> None:
    """All replies after it would be another one's."""
    commands, _ = on_paper(loop)
    commands.receive(HANDSHAKE_REPLIES + b"+OK\r\n", 1000, 0.0)

    assert (DISCONNECTED, "malformed_reply") == (commands.state, loop.log.events[-1][1]["reason"])


def test_garbage_ends_the_connection(loop: Loop) -> None:
    """Something that is no Redis would be waited for, or its bytes be taken for answers."""
    commands, _ = on_paper(loop)
    commands.receive(b"HTTP/1.1 400 Bad Request\r\n", 1000, 0.0)

    assert DISCONNECTED == commands.state
    assert StoreFailure.MALFORMED_REPLY.label == loop.log.events[-1][1]["reason"]
