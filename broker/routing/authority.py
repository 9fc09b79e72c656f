from typing import Protocol

from broker.session.principal import Principal


class Authoriser(Protocol):
    """Decides what a principal may do. Routes keep its answers, and are invalidated when the answers change.

    Topics and filters are valid names. A filter of a shared subscription comes without "$share/name/".
    """

    generation: int  # changes whenever the answers may have changed

    def may_publish(self, principal: Principal, topic: bytes) -> bool: ...

    def may_receive(self, principal: Principal, topic: bytes) -> bool: ...

    def may_subscribe(self, principal: Principal, filter: bytes) -> bool:
        """False only if nothing that *filter* matches may be received."""
        ...
