# One session per client id across workers, on real servers: one owner, rising epochs, and the way back after an outage.
import random
import resource
from collections.abc import Callable
from itertools import pairwise

import pytest

from broker.cluster.claim_policy import CLAIM_PATIENCE
from broker.cluster.registry import CLAIMED, LOCAL, OF_OTHER_USER, REFUSED
from broker.session.principal import ANONYMOUS
from broker.store.redis.keys import LEASE, SLICES
from broker.worker_id import WorkerId
from supervisor.redis_server import RedisServer
from tests.cluster.shard import KEYS, Shard
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]


def owner(server: RunningRedis, client_id: str) -> list[str]:
    """The words that Redis has for the owner of *client_id*."""
    with server.client() as client:
        text = client.get(KEYS.owner(client_id.encode()))
    return [] if text is None else bytes(text).decode().split(" ")


def set_owner(server: RunningRedis, client_id: str, text: str) -> None:
    with server.client() as client:
        client.set(KEYS.owner(client_id.encode()), text)


def test_a_claim_names_the_former_owner(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """Nobody would tell the former owner: two connections of one client [MQTT-3.1.4-3]."""
    server = start_redis(every_server)
    one, two = Shard(loop, server.address, 1), Shard(loop, server.address, 2)

    first = one.verdict("me")
    assert (CLAIMED, None) == (first.outcome, first.former)
    second = two.verdict("me")
    assert second.former is not None
    assert (first.epoch, one.identity) == (second.former.epoch, second.former.worker)
    assert second.epoch > first.epoch
    assert [str(second.epoch), two.incarnation, "2", "node", "-"] == owner(server, "me")


def test_claiming_ones_own_session_names_nobody(start_redis: StartRedis, loop: Loop) -> None:
    """A worker would ask itself for the session."""
    shard = Shard(loop, start_redis().address)
    before = shard.claim("me")
    verdict = shard.verdict("me")

    assert (None, True) == (verdict.former, verdict.epoch > before)


@pytest.mark.parametrize("client_id", ["", "{x}", "a b", "ä\u20ac\U0001f600", "x" * 1024, "9 0000000000000001 0 node"])
def test_any_client_id_is_a_key(start_redis: StartRedis, loop: Loop, client_id: str) -> None:
    """Some clients could not come in, or would be taken for others."""
    server = start_redis()
    one, two = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    one.claim(client_id)
    former = two.verdict(client_id).former

    assert former is not None
    assert one.incarnation == former.worker.incarnation_text


def test_nothing_stays_for_ever(start_redis: StartRedis, loop: Loop) -> None:
    """What dead nodes have left would fill Redis."""
    server = start_redis()
    shard = Shard(loop, server.address)
    for number in range(50):
        shard.claim(f"client{number}", b"0 will")
    with server.client() as client:
        lives = {bytes(key): client.ttl(key) for key in client.scan_iter() if not bytes(key).endswith(b":generation")}

    assert 50 + SLICES >= len(lives) > 50
    assert all(0 < life <= LEASE for life in lives.values())
    for number in range(50):
        shard.registry.release(f"client{number}")
    shard.settle()
    with server.client() as client:
        assert [KEYS.generation] == client.keys()


def test_many_claims_at_once_have_one_owner_and_rising_epochs(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """Two workers would believe that they own a session, or an older claim beat a newer one."""
    server = start_redis(every_server)
    shards = [Shard(loop, server.address, number) for number in range(4)]
    loop.ready(*(shard.commands for shard in shards))
    loop.stop_clock()
    dice = random.Random(1)
    clients = [f"client{number}" for number in range(5)]
    asked = []
    for _ in range(2000):
        client, shard = dice.choice(clients), dice.choice(shards)
        asked.append((client, shard, shard.ask(client, lasting=dice.random() < 0.5)))
        if dice.random() < 0.05:
            loop.turn()
    loop.until(lambda: all(verdicts for _, _, verdicts in asked))

    for client in clients:
        claims = sorted((verdicts[0].epoch, shard) for name, shard, verdicts in asked if name == client)
        epochs = [epoch for epoch, _ in claims]
        assert len(set(epochs)) == len(epochs)
        # Each claim names the one before it, unless that was its own worker's: a chain without a gap.
        by_epoch = {verdicts[0].epoch: (shard, verdicts[0].former) for name, shard, verdicts in asked if name == client}
        for earlier, later in pairwise(epochs):
            shard, former = by_epoch[later]
            if by_epoch[earlier][0] is shard:
                assert former is None
            else:
                assert former is not None
                assert earlier == former.epoch
        last = claims[-1][1]
        assert [str(epochs[-1]), last.incarnation, str(last.number), "node", "-"] == owner(server, client)


def test_epochs_rise_though_the_clock_of_redis_does_not(start_redis: StartRedis, loop: Loop) -> None:
    """A server whose clock was put back would let stale owners win."""
    server = start_redis()
    shard = Shard(loop, server.address)
    future = shard.claim("me") + 3_600_000_000
    set_owner(server, "me", f"{future} 00000000000000ff 7 elsewhere -")

    assert future + 1 == shard.claim("me")


def test_epochs_rise_though_redis_has_forgotten(start_redis: StartRedis, loop: Loop) -> None:
    """After the loss of a log's end an old owner's epoch would be given again."""
    server = start_redis()
    shard = Shard(loop, server.address)
    before = shard.claim("me")
    with server.client() as client:
        client.delete(KEYS.owner(b"me"))

    assert shard.claim("me") > before


def test_a_stale_owner_changes_nothing(start_redis: StartRedis, loop: Loop) -> None:
    """A worker that was taken for dead would end the session of its successor, or publish its will."""
    server = start_redis()
    stale, new = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    stale.claim("me", b"0 old")
    epoch = new.claim("me", b"0 new")
    stale.registry.release("me")
    stale.settle()

    assert [str(epoch), new.incarnation, "2", "node", "-"] == owner(server, "me")
    assert 0 == stale.registry.epoch_of("me")
    new.registry.release("me")
    new.settle()
    assert [] == owner(server, "me")


# Redis goes away.


def test_all_is_claimed_again_after_redis_lost_everything(start_redis: StartRedis, loop: Loop) -> None:
    """After FLUSHALL, or a failover to an empty server, each session could be owned twice."""
    server = start_redis()
    shard = Shard(loop, server.address)
    epochs = {f"client{number}": shard.claim(f"client{number}") for number in range(700)}
    shard.settle()
    with server.client() as client:
        client.flushall()
    loop.until(lambda: len(owner(server, "client0")) > 0)
    shard.settle()

    assert 1 == shard.registry.statistics.forgotten
    for client_id, epoch in epochs.items():
        assert [str(epoch), shard.incarnation, "0", "node", "-"] == owner(server, client_id)


def test_all_is_claimed_again_after_a_restart(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """A restart that lost the end of the log would leave sessions that another worker can own as well."""
    server = start_redis(every_server)
    shard = Shard(loop, server.address)
    epoch = shard.claim("me", b"0 will")
    with server.client() as client:
        client.delete(KEYS.owner(b"me"))  # as if it was in the end that was lost
    server.kill()
    server.start()
    loop.until(lambda: len(owner(server, "me")) > 0)

    assert [str(epoch), shard.incarnation, "0", "node", "-"] == owner(server, "me")


def test_the_scripts_come_back_though_the_connection_stayed(start_redis: StartRedis, loop: Loop) -> None:
    """SCRIPT FLUSH, or a failover behind a proxy, would end all claims for ever."""
    server = start_redis()
    shard = Shard(loop, server.address)
    shard.claim("me")
    with server.client() as client:
        client.script_flush()
    shard.claim("me")

    assert 1 == shard.commands.times_ready


def test_without_redis_the_node_goes_on_and_tells_it_afterwards(start_redis: StartRedis, loop: Loop) -> None:
    """Clients could not connect while Redis is away, or Redis would never hear of those who did."""
    server = start_redis()
    shard = Shard(loop, server.address)
    before = shard.claim("me")
    server.kill()
    verdict = shard.verdict("me", lasting=False)

    assert (LOCAL, None) == (verdict.outcome, verdict.former)
    loop.until(lambda: shard.commands.unresponsive_for(loop.now()) >= CLAIM_PATIENCE)
    epoch = shard.hold_locally("me")
    assert epoch > before
    again = shard.ask("other", lasting=False)
    assert [LOCAL] == [verdict.outcome for verdict in again]  # at once: it is known to be away
    server.start()
    loop.until(lambda: owner(server, "me")[:1] == [str(epoch)])


def test_a_lasting_session_is_refused_after_two_seconds(start_redis: StartRedis, loop: Loop) -> None:
    """A second session would hide the one that waits elsewhere, or its client wait for ever."""
    server = start_redis()
    shard = Shard(loop, server.address)
    loop.ready(shard.commands)
    server.kill()
    began = loop.now()

    assert REFUSED == shard.verdict("me", lasting=True).outcome
    assert loop.now() - began >= 1.8
    assert 0 == shard.registry.epoch_of("me")


def test_a_lasting_session_gets_in_when_redis_is_back_in_time(start_redis: StartRedis, loop: Loop) -> None:
    """A restart of Redis would turn clients away whom it could have served."""
    server = start_redis()
    shard = Shard(loop, server.address)
    loop.ready(shard.commands)
    server.kill()
    waiting = shard.ask("me", lasting=True)
    loop.for_seconds(0.5)
    assert [] == waiting
    server.start()
    loop.until(lambda: bool(waiting))

    assert [CLAIMED] == [verdict.outcome for verdict in waiting]
    assert [str(waiting[0].epoch), shard.incarnation, "0", "node", "-"] == owner(server, "me")


def test_a_claim_that_was_carried_out_late_is_taken_back(start_redis: StartRedis, loop: Loop) -> None:
    """After a pause of Redis a session would be owned by a worker that has refused it."""
    server = start_redis()
    shard = Shard(loop, server.address)
    loop.ready(shard.commands)
    shard.settle()
    server.pause()
    verdict = shard.verdict("me", lasting=False)
    assert LOCAL == verdict.outcome  # and nobody holds it: its client has gone meanwhile
    server.go_on()
    shard.settle()

    assert [] == owner(server, "me")


def test_a_claim_that_was_carried_out_late_is_kept_if_its_session_is(start_redis: StartRedis, loop: Loop) -> None:
    """The session would be free for others in Redis, though its client is here."""
    server = start_redis()
    shard = Shard(loop, server.address)
    loop.ready(shard.commands)
    server.pause()
    assert LOCAL == shard.verdict("me", lasting=False).outcome
    shard.hold_locally("me")
    server.go_on()
    shard.settle()

    assert [str(shard.registry.epoch_of("me")), shard.incarnation, "0", "node", "-"] == owner(server, "me")


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_owners_the_later_stays(start_redis: StartRedis, loop: Loop, first: int) -> None:
    """After an outage a client would be connected twice, or its old connection win [MQTT-3.1.4-3].

    Whoever tells Redis first: the earlier one finds the later one there, or the later one takes over from it.
    """
    server = start_redis()
    clock = [1000.0]
    early, late = (Shard(loop, server.address, number, wall=lambda: clock[0]) for number in (1, 2))
    loop.ready(early.commands, late.commands)
    server.kill()
    loop.until(lambda: not (early.commands.state or late.commands.state))
    early.hold_locally("me")
    clock[0] += 1.0
    epoch = late.hold_locally("me")
    second = late if first == early.number else early
    loop.ticking = [one for one in loop.ticking if one is not second.commands]
    server.start()
    (early if second is late else late).settle()
    loop.ticking.append(second.commands)
    second.settle()

    assert [str(epoch), late.incarnation, "2", "node", "-"] == owner(server, "me")
    assert (epoch, {}) == (late.registry.epoch_of("me"), late.superseded_by)
    if second is late:
        assert early.incarnation == late.supersedes["me"].worker.incarnation_text
        assert not early.registry.yield_to("me", late.supersedes["me"].epoch)
        assert early.registry.yield_to("me", epoch)
    else:
        assert late.incarnation == early.superseded_by["me"].worker.incarnation_text
    assert 0 == early.registry.epoch_of("me")
    assert [str(epoch), late.incarnation, "2", "node", "-"] == owner(server, "me")


def test_what_ends_in_an_outage_is_released_afterwards(start_redis: StartRedis, loop: Loop) -> None:
    """The will of a client that has said goodbye would be published when its worker dies, days later."""
    server = start_redis()
    shard = Shard(loop, server.address)
    for number in range(600):
        shard.claim(f"client{number}", b"0 will")
    server.kill()
    loop.until(lambda: shard.commands.state == 0)
    for number in range(600):
        shard.registry.release(f"client{number}")
    assert 600 == shard.registry.owned.statistics().ended
    server.start()
    shard.settle()
    with server.client() as client:
        assert [KEYS.generation] == client.keys()


@pytest.mark.slow
def test_no_owner_is_lost_while_redis_is_killed_again_and_again(start_redis: StartRedis, loop: Loop) -> None:
    """Somewhere between asking, dying and claiming again a session would have no owner, or two."""
    server = start_redis()
    shards = [Shard(loop, server.address, number) for number in range(3)]
    dice = random.Random(7)
    clients = [f"client{number}" for number in range(40)]
    newest: dict[str, tuple[int, Shard]] = {}
    for _ in range(8):
        asked = []
        for _ in range(150):
            client, shard = dice.choice(clients), dice.choice(shards)
            asked.append((client, shard, shard.ask(client, lasting=True)))
            loop.turn()
        server.kill()
        loop.for_seconds(dice.random() * 0.2)
        server.start()
        loop.until(lambda asked=asked: all(verdicts for _, _, verdicts in asked))  # type: ignore[misc]
        for shard in shards:
            shard.settle()
        for client, shard, (verdict,) in asked:
            if verdict.outcome == CLAIMED and verdict.epoch > newest.get(client, (0, shard))[0]:
                newest[client] = (verdict.epoch, shard)
    for client, (epoch, shard) in newest.items():
        assert int(owner(server, client)[0]) >= epoch
        assert shard.incarnation == owner(server, client)[1]
        assert shard.registry.epoch_of(client) >= epoch


def test_a_session_at_another_node_is_kept_for_its_user(start_redis: StartRedis, loop: Loop) -> None:
    """A user could take over any session of a cluster by connecting to another node."""
    server = start_redis()
    here, there = Shard(loop, server.address, 1), Shard(loop, server.address, 2, node="another")
    assert CLAIMED == here.verdict("me", user="a").outcome
    before = owner(server, "me")

    refused = there.verdict("me", will=b"0 will", user="b")
    assert (OF_OTHER_USER, 0) == (refused.outcome, there.registry.epoch_of("me"))
    assert before == owner(server, "me")
    assert CLAIMED == there.verdict("me", user="a").outcome
    assert CLAIMED == here.verdict("me", user="*").outcome  # client ids are not exclusive there


def test_a_session_that_died_with_its_worker_is_kept_for_nobody(start_redis: StartRedis, loop: Loop) -> None:
    """An id would be refused to its next user for a day, though there is no session."""
    server = start_redis()
    dead, there = Shard(loop, server.address, 1), Shard(loop, server.address, 2, node="another")
    assert CLAIMED == dead.verdict("me", user="a").outcome
    there.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())
    loop.until(there.orphaned_wills.idle)

    assert CLAIMED == there.verdict("me", user="b").outcome


def test_the_user_of_a_session_is_told_again(start_redis: StartRedis, loop: Loop) -> None:
    """After Redis has lost its data, another user could have the session."""
    server = start_redis()
    here, there = Shard(loop, server.address, 1), Shard(loop, server.address, 2, node="another")
    assert CLAIMED == here.verdict("me", user="a").outcome
    with server.client() as client:
        client.flushall()
    here.registry.redis_ready(loop.now())
    here.settle()

    assert OF_OTHER_USER == there.verdict("me", user="b").outcome


@pytest.mark.parametrize("shard", [b"3", b"damaged"])
def test_a_claim_without_another_names_the_worker_that_has_the_session_stored(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop, shard: bytes
) -> None:
    """A session whose claim was lost would be begun anew, beside the one that is stored."""
    server = start_redis(every_server)
    here = Shard(loop, server.address, durable=True)
    without = here.verdict("without")
    with server.client() as client:
        owners, records = KEYS.durable_owners("node"), KEYS.records(KEYS.slice_of(b"me"))
        client.hset(owners, mapping={b"%016x" % number: shard for number in (7, 8, 9)})
        client.hset(records + b"0000000000000008:me", b"", b"head")
        client.hset(KEYS.records(KEYS.slice_of(b"you")) + b"0000000000000008:you", b"", b"head")
    found = here.verdict("me").former

    assert without.former is None
    assert found is not None
    assert (WorkerId("node", 3 if shard.isdigit() else 0, 8), "*") == (found.worker, found.user)
    assert here.verdict("without").former is None
    assert Shard(loop, server.address, durable=True).verdict("me").former != found  # a claim says more
    assert Shard(loop, server.address, durable=True, node="another").verdict("you").former is None


def test_a_full_redis_takes_claims_of_sessions_that_it_has(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """A client would not get what waits for it while Redis is full; or clients could fill it further."""
    server = start_redis(every_server)
    one, two = Shard(loop, server.address, durable=True), Shard(loop, server.address, durable=True)
    before = one.verdict("claimed").epoch
    wills = KEYS.wills(KEYS.slice_of(b"claimed"), two.incarnation.encode())
    with server.client() as client:
        client.hset(KEYS.durable_owners("node"), b"0000000000000008", b"3")
        client.hset(KEYS.records(KEYS.slice_of(b"stored")) + b"0000000000000008:stored", b"", b"head")
        client.config_set("maxmemory", 1)
        claimed, stored, new = two.verdict("claimed", will=b"0 will"), two.verdict("stored"), two.verdict("new")
        assert [CLAIMED, CLAIMED, REFUSED] == [each.outcome for each in (claimed, stored, new)]
        assert LOCAL == two.verdict("clean", lasting=False).outcome
        assert claimed.epoch > before
        assert [one.identity, WorkerId("node", 3, 8)] == [
            each.former and each.former.worker for each in (claimed, stored)
        ]
        assert not client.exists(wills)
        assert [] == owner(server, "new")
        client.config_set("maxmemory", 0)
        loop.until(lambda: bool(client.exists(wills)))

    assert f"{claimed.epoch} {two.incarnation}" == " ".join(owner(server, "claimed")[:2])


def test_a_redis_that_cannot_write_takes_the_claim_of_the_owner(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """A full disk would turn away clients at the very worker that has their sessions."""
    server = start_redis(every_server)
    one, two = Shard(loop, server.address, durable=True), Shard(loop, server.address, durable=True)
    before = one.verdict("me").epoch
    with server.client() as client:
        client.config_set("appendonly", "no")
        client.config_set("save", "3600 1")
        client.config_set("stop-writes-on-bgsave-error", "yes")
        client.set("large", random.randbytes(300_000))
        hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (200_000, hard))  # a disk that is full
        client.bgsave()
        loop.until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        again, new, elsewhere = one.ask("me"), one.ask("new"), two.ask("me")
        loop.until(lambda: all((again, new, elsewhere)))
        assert [CLAIMED, REFUSED, REFUSED] == [each.outcome for (each,) in (again, new, elsewhere)]
        assert (before, None, False) == (again[0].epoch, again[0].former, again[0].uncertain)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        client.config_set("save", "")
        assert CLAIMED == two.verdict("me").outcome

    assert owner(server, "me")[1] == two.incarnation


def test_a_full_redis_takes_back_what_was_claimed_in_vain(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """The next claimant would look for the session at a worker that does not have it."""
    server = start_redis(every_server)
    one, two = Shard(loop, server.address), Shard(loop, server.address)
    one.verdict("me")
    before = owner(server, "me")
    with server.client() as client:
        client.config_set("maxmemory", 1)
    former = two.verdict("me").former
    two.registry.give_back("me", former, ANONYMOUS)
    loop.until(lambda: owner(server, "me") == before)
