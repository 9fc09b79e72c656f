# The start of a node: all files are checked and all sockets opened before the first worker starts.
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import fields
from functools import partial

import structlog
import trio
from redis import RedisError

from broker.auth.files import AccessFileError, AccessFiles
from broker.cluster.lane_format import LANE_FORMAT
from broker.config.contradictions import exposed
from broker.config.schema import Config
from broker.control.machine import raise_descriptor_limit
from broker.insight.logs import configure
from broker.net.listeners import ListenError, listen, listen_for_shards
from broker.net.transports.certificates import CertificateError, make_context
from broker.store.redis.keys import Keys
from broker.version import VERSION
from supervisor.audit import Audit
from supervisor.cluster_settings import agreed, compared
from supervisor.commands import TESTED, Commands
from supervisor.control import bind_control, serve_control
from supervisor.folder import FolderError, NodeFolder
from supervisor.logfile import LogFile
from supervisor.node import CANNOT_START, SIGNALS, Node
from supervisor.node_lease import Identity, NodeLease, NodeList, NodeRefused
from supervisor.node_redis import NodeRedis
from supervisor.redis_address import explained
from supervisor.redis_server import RedisUnusable
from supervisor.workers import Listener


class StartError(Exception):
    """The node cannot start; no process and no lock is left. The text is one sentence for the user."""


class GaveUp(Exception):
    """The node ended because its workers died again and again. The text is one sentence for the user."""


def run(
    config: Config,
    detached: bool = False,
    on_ready: Callable[[], None] | None = None,
    reread: Callable[[], Config] | None = None,
) -> int:
    """Keep a node until SIGTERM or SIGINT; the exit code. StartError, GaveUp.

    *detached*: log lines go to a file in the node's folder. *on_ready* is called when all workers serve. *reread*: see
    `Node`.
    """
    raise_descriptor_limit()
    # The signals are blocked until Node.serve() handles them: they would end a half-started node. Workers inherit the
    # mask and reset it. SIG_DFL, as a shell starts background jobs with SIGINT ignored, and ignored signals are lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        with ExitStack() as held:
            node, services = _prepare(config, detached, held, on_ready or _nothing, reread)
            code = trio.run(node.serve, services)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if node.sentence:
        raise (StartError if code == CANNOT_START else GaveUp)(node.sentence)
    return code


def worker_count(config: Config) -> int:
    """The worker processes of a node: node.workers, or one for each processor core that this process may use."""
    return config.node.workers or len(os.sched_getaffinity(0))


def check_files(config: Config) -> str:
    """What is wrong with the files that *config* names; "" if they can be used."""
    try:
        AccessFiles(config.access)
        if config.listeners.tls.enabled or config.listeners.wss.enabled:
            make_context(config.tls)
    except (AccessFileError, CertificateError) as error:
        return str(error)
    return ""


def _prepare(
    config: Config,
    detached: bool,
    held: ExitStack,
    on_ready: Callable[[], None],
    reread: Callable[[], Config] | None,
) -> tuple[Node, list[Callable[[], object]]]:
    """The node and its services, which are not running yet. *held* closes what they have opened."""
    check = partial(check_files, config)
    wrong = check()
    if wrong:
        raise StartError(wrong)
    folder = NodeFolder(config.node.name, config.node.folder)
    try:
        folder.take()
        held.callback(folder.release)
        listeners = _open_listeners(config)
        held.callback(_close_all, listeners)
        admin = _open_admin(config)
        held.callback(_close, admin)
        control = bind_control(folder)
        held.callback(control.close)
    except FolderError as error:
        raise StartError(str(error)) from None
    log_file = LogFile()
    if detached:
        log_file.detach(folder.log)
    configure(config.log.level, config.log.format, about={"node": config.node.name})
    try:
        redis = NodeRedis(config, folder, structlog.get_logger())
        taken = _take_name(config, folder, redis, held)
    except (RedisUnusable, NodeRefused) as error:
        raise StartError(str(error)) from None
    _log_listeners(config, listeners, admin)
    tested = os.environ.get(TESTED) == "1"
    if tested:
        structlog.get_logger().warning("signals_can_be_injected", variable=TESTED)
    audit = Audit(
        folder.log.with_name("audit"), f"control socket of {config.node.name}", structlog.get_logger(), time.time
    )
    node = Node(config, folder, listeners, log_file, check, redis, on_ready, reread, taken)
    services: list[Callable[[], object]] = [partial(serve_control, control, Commands(node, audit, tested))]
    if admin:
        from supervisor.web import serve_web  # its library takes a tenth of a second to load

        services += [partial(serve_web, listener, node) for listener in admin]
    return node, services


def _take_name(
    config: Config, folder: NodeFolder, redis: NodeRedis, held: ExitStack
) -> tuple[NodeLease, NodeList] | None:
    """The lease of the name of the node, and the nodes that there are; None: nobody shares its Redis.

    *held* makes the name free. NodeRefused, RedisUnusable, StartError.
    """
    if redis.private():
        return None
    identity = Identity(
        name=config.node.name,
        host=socket.gethostname(),
        version=VERSION,
        folder=str(folder.path),
        workers=worker_count(config),
        agreed={**redis.agreed(), **agreed(config)},
        compared=compared(config),
        lanes=0 if config.inbound.enabled() else LANE_FORMAT,
        reference=config.node.reference,
    )
    keys = Keys(config.redis.prefix)
    channel = keys.node_notices(redis.address.db)
    log = structlog.get_logger()
    lease = NodeLease(redis.opener(), keys, channel, redis.shown(), identity, folder.path, log)
    with explained(redis.shown()):
        try:
            found = lease.take(_pause)
        except OSError as error:
            raise StartError(f"Cannot use the folder {error.filename or folder.path}: {error.strerror}.") from None
    held.callback(_release, lease)
    return lease, found


def _pause(seconds: float) -> None:
    """Wait for *seconds*. StartError: one of SIGNALS came, which are blocked yet; so SIGHUP ends the node, too."""
    came = signal.sigtimedwait(SIGNALS, seconds)
    if came is not None:
        name = signal.Signals(came.si_signo).name
        raise StartError(f"{name} ended the start while the node waited for its name.")


def _release(lease: NodeLease) -> None:
    with suppress(RedisError):  # the lease runs out
        lease.release()


def _open_listeners(config: Config) -> list[list[Listener]]:
    """The listening sockets of each shard. StartError: all are closed again."""
    shards = worker_count(config)
    listeners: list[list[Listener]] = [[] for _ in range(shards)]
    try:
        for one in fields(config.listeners):
            settings = getattr(config.listeners, one.name)
            if settings.enabled:
                for mine, opened in zip(listeners, listen_for_shards(settings, config.delivery, shards), strict=True):
                    mine += [(one.name, listener) for listener in opened]
    except ListenError as error:
        _close_all(listeners)
        option = ", --port" if one.name == "tcp" and error.setting == "port" else ""
        raise StartError(f"{error} (listeners.{one.name}.{error.setting}{option})") from None
    return listeners


def _open_admin(config: Config) -> list[socket.socket]:
    try:
        return listen(config.admin, config.delivery) if config.admin.enabled else []
    except ListenError as error:
        raise StartError(f"{error} (admin.{error.setting})") from None


def _close_all(listeners: list[list[Listener]]) -> None:
    for mine in listeners:
        _close([listener for _, listener in mine])


def _close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def _log_listeners(config: Config, listeners: list[list[Listener]], admin: list[socket.socket]) -> None:
    log = structlog.get_logger()
    for name, listener in [*listeners[0], *(("admin", one) for one in admin)]:
        host, port = listener.getsockname()[:2]
        log.info("listening", transport=name, host=host, port=port)
    open_to = [host for _, host in exposed(config)]
    if config.access.allow_anonymous and open_to:
        log.warning("anonymous_clients_allowed", hosts=open_to, setting="access.allow_anonymous")


def _nothing() -> None:
    pass
