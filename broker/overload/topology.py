# Changes of the cluster: nodes that join or leave.
#
# Such a change brings work to all workers for some seconds: a newcomer is told everything, sessions of a node that has
# left are adopted, and its clients connect again. So it is a signal of overload while that lasts (level.py says how
# much it counts). It is bounded: nothing here depends on whether that work is done, so work that never ends cannot hold
# the level up.
class Topology:
    def __init__(self, lasts: float) -> None:
        """*lasts*: seconds for which a change counts."""
        self._lasts = lasts
        self._count = 0  # nodes that have joined or left, the latest of them `_lasts` before `_until`
        self._until = 0.0

    def changed(self, nodes: int, now: float) -> None:
        """So many *nodes* have joined or left the cluster."""
        self._count = nodes + (self._count if now < self._until else 0)
        self._until = now + self._lasts

    def recent(self, now: float) -> float:
        """Nodes that have joined or left, if the last of them did so a short time ago."""
        return float(self._count) if now < self._until else 0.0
