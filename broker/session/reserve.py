# One account of the memory ledger: the bytes that clients make a worker hold for one purpose, and their limit.
#
# The limits of all accounts fit into the memory of the worker together (config/budget.py). What enters is charged and
# what leaves is given back, so `used` is what is held now. The owner of an account decides what happens when it is
# full.


class Reserve:
    def __init__(self, limit: int) -> None:
        """*limit* in bytes."""
        self.limit = limit
        self.used = 0

    def fits(self, size: int) -> bool:
        """Whether *size* more bytes are within the limit."""
        return self.used + size <= self.limit

    def take(self, size: int) -> None:
        """Charge *size* bytes, also beyond the limit: the caller has asked, or cannot refuse."""
        self.used += size

    def give_back(self, size: int) -> None:
        self.used -= size
