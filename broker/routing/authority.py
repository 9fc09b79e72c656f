from typing import Protocol

from broker.session.principal import Principal


class Authoriser(Protocol):
    """Decides who may do what. Routes keep its answers: when it would answer otherwise, they have to be told.

    Topics and filters are checked names; a filter comes without its "$share/name/".
    """

    generation: int  # another one whenever its answers may be others

    def may_publish(self, principal: Principal, topic: bytes) -> bool: ...

    def may_receive(self, principal: Principal, topic: bytes) -> bool: ...

    def may_subscribe(self, principal: Principal, filter: bytes) -> bool:
        """False only if nothing that *filter* matches may be received."""
        ...
