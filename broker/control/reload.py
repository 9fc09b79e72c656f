# Reloading: what the worker reads again without a restart.
from functools import partial

from broker.auth.acl import Acl
from broker.auth.authenticator import Authenticator
from broker.auth.files import AccessFileError, AccessFiles
from broker.net.transports.certificates import CertificateError
from broker.net.transports.enabled import EnabledTransports
from broker.protocol.essentials import Essentials
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.routing.routes import Routes


class Reload:
    def __init__(
        self,
        base: Essentials,
        acl: Acl | None,
        authenticator: Authenticator,
        transports: EnabledTransports,
        routes: Routes,
        lifecycle: ConnectionLifecycle,
    ) -> None:
        self._config = base.config
        self._acl = acl
        self._authenticator = authenticator
        self._transports = transports
        self._routes = routes
        self._lifecycle = lifecycle
        self._reactor = base.reactor
        self._log = base.log
        self._clock = base.clock

    def run(self) -> str:
        """Read the password file, the ACL file and the certificate again. Returns "", or what is wrong with one of
        them: then none of them takes effect.
        """
        config = self._config
        try:
            files = AccessFiles(config.access)
            context = self._transports.read_certificate()
        except (AccessFileError, CertificateError) as error:
            self._log.error("reload_failed", why=str(error))
            return str(error)
        if context is not None:
            self._transports.use(context)
        self._enforce(files)
        named = (config.tls.certificate, config.tls.client_crl, config.access.password_file, config.access.acl_file)
        self._log.info("reloaded", files=[file for file in named if file])
        return ""

    def _enforce(self, files: AccessFiles) -> None:
        """Apply *files* to all clients, also to those that are connected."""
        if self._acl is not None and files.acl is not None:
            self._acl.replace(files.acl)
            self._routes.invalidate()
        if files.passwords is not None:
            former = self._authenticator.replace(files.passwords)
            if former is not None:
                self._lifecycle.dismiss(partial(former.lost, files.passwords), self._clock())
                self._reactor.wake()
