# How a node starts: everything that can be wrong is found, and everything that can be in use is opened, before the
# first worker begins.
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from functools import partial

import structlog
import trio

from broker.auth.files import AccessFileError, AccessFiles
from broker.config.schema import Config, exposed
from broker.control.machine import raise_descriptor_limit
from broker.insight.logs import configure
from broker.net.listeners import ListenError, listen, listen_for_shards
from broker.net.transports.certificates import CertificateError, make_context
from supervisor.commands import TESTED, Commands
from supervisor.control import bind_control, serve_control
from supervisor.folder import FolderError, NodeFolder
from supervisor.logfile import LogFile
from supervisor.node import CANNOT_START, SIGNALS, Node
from supervisor.node_redis import NodeRedis
from supervisor.redis_server import RedisUnusable
from supervisor.workers import Listener


class StartError(Exception):
    """The node cannot start, and nothing of it is left. Its text is one sentence for the user."""


class GaveUp(Exception):
    """The node ended because its workers do not stay alive. Its text is one sentence for the user."""


def run(config: Config, detached: bool = False, on_ready: Callable[[], None] | None = None) -> int:
    """Keep a node until SIGTERM or SIGINT; the exit code. StartError, GaveUp.

    *detached*: its log goes to its folder. *on_ready* is called once it serves.
    """
    raise_descriptor_limit()
    # Until they are listened to: they would end us half started. Workers inherit that, and undo it. A shell has its
    # background jobs ignore SIGINT, and what is ignored would be forgotten meanwhile.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        with ExitStack() as held:
            node, services = _prepare(config, detached, held, on_ready or _nothing)
            code = trio.run(node.serve, services)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if node.sentence:
        raise (StartError if code == CANNOT_START else GaveUp)(node.sentence)
    return code


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
    config: Config, detached: bool, held: ExitStack, on_ready: Callable[[], None]
) -> tuple[Node, list[Callable[[], object]]]:
    """A node that is ready to serve, and what is to be served beside it; *held* gives back what they hold."""
    check = partial(check_files, config)
    wrong = check()
    if wrong:
        raise StartError(wrong)
    folder = NodeFolder(config.node.name, config.node.folder)
    try:
        folder.take()
        held.callback(folder.give_back)
        doors = _open_doors(config)
        held.callback(_close_doors, doors)
        admin = listen(config.admin, config.delivery) if config.admin.enabled else []
        held.callback(_close, admin)
        control = bind_control(folder)
        held.callback(control.close)
    except (FolderError, ListenError) as error:
        raise StartError(str(error)) from None
    log_file = LogFile()
    if detached:
        log_file.detach(folder.log)
    configure(config.log.level, config.log.format, about={"node": config.node.name})
    try:
        redis = NodeRedis(config, folder, structlog.get_logger())
    except RedisUnusable as error:
        raise StartError(str(error)) from None
    _tell_doors(config, doors, admin)
    tested = os.environ.get(TESTED) == "1"
    if tested:
        structlog.get_logger().warning("signals_can_be_injected", variable=TESTED)
    node = Node(config, folder, doors, log_file, check, redis, on_ready)
    services: list[Callable[[], object]] = [partial(serve_control, control, Commands(node, tested))]
    if admin:
        from supervisor.web import serve_web  # its library takes a tenth of a second to load

        services += [partial(serve_web, listener, node) for listener in admin]
    return node, services


def _open_doors(config: Config) -> list[list[Listener]]:
    """For each shard its listening sockets. ListenError: none is open."""
    shards = config.node.workers or len(os.sched_getaffinity(0))
    doors: list[list[Listener]] = [[] for _ in range(shards)]
    try:
        for one in fields(config.listeners):
            settings = getattr(config.listeners, one.name)
            if settings.enabled:
                for mine, opened in zip(doors, listen_for_shards(settings, config.delivery, shards), strict=True):
                    mine += [(one.name, door) for door in opened]
    except ListenError:
        _close_doors(doors)
        raise
    return doors


def _close_doors(doors: list[list[Listener]]) -> None:
    for mine in doors:
        _close([door for _, door in mine])


def _close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def _tell_doors(config: Config, doors: list[list[Listener]], admin: list[socket.socket]) -> None:
    log = structlog.get_logger()
    for name, door in [*doors[0], *(("admin", one) for one in admin)]:
        host, port = door.getsockname()[:2]
        log.info("listening", transport=name, host=host, port=port)
    open_to = [host for _, host in exposed(config)]
    if config.access.allow_anonymous and open_to:
        log.warning("anonymous_clients_allowed", hosts=open_to, setting="access.allow_anonymous")


def _nothing() -> None:
    pass
