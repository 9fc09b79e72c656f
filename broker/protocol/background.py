# What a worker does beside serving its clients: work for other workers and for Redis, as far as the hub knows of it.
class Background:
    """The base class is a worker without other workers and without Redis."""

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be."""
        return now + 3600.0

    def busy(self) -> bool:
        """Whether `work()` has something to do."""
        return False

    def work(self, until: float) -> bool:
        """Go on with unfinished work up to the time *until*; true if some is left."""
        return False
