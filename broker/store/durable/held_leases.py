# The leases of a session: partitions of shared logs that it reads for its groups (leases.py).
#
# A lease ends in two steps. What was passed on is stored first, and how far that is with it; then the lease is
# released, in a later transaction, with what is stored of it. While Redis is full, removals are sent without the
# messages that they follow: a release in one step would leave out what was passed on and not stored.
from typing import Final

from broker.store.durable.lease_scripts import LeaseKeys, lease_field, read_field
from broker.store.durable.leases import EPOCH, Lease, LeaseReader, first_saved
from broker.store.durable.log_feed import LogFeed
from broker.store.durable.removals import Words

UNREAD: Final = bytes(EPOCH) + first_saved(0)  # in place of what is stored of a lease


class HeldLeases:
    def __init__(self) -> None:
        self.all: Final[dict[bytes, Lease]] = {}  # by their fields in the record; also those that are being released
        self.readers: Final[dict[LeaseReader, None]] = {}  # those of the session, with or without a lease
        self._turn = 0

    def add(self, lease: Lease) -> None:
        self.all[lease_field(lease.group, lease.partition)] = lease

    def restore(self, fields: dict[bytes, bytes], damaged: bool = False) -> None:
        """What is stored of leases, by field: nobody reads these partitions, so they are released. ValueError.

        *damaged*: the session is; its leases are released as they are stored, whether they can be read or not.
        """
        for field, value in fields.items():
            try:
                lease = Lease(*read_field(field), UNREAD if damaged else value)
            except ValueError:
                if not damaged:
                    raise
                continue
            lease.releasing = True
            self.all[field] = lease

    def find(self, group: bytes, partition: int) -> Lease | None:
        return self.all.get(lease_field(group, partition))

    def of_group(self, group: bytes) -> list[Lease]:
        """Those of *group* that are not being released."""
        return [lease for lease in self.all.values() if lease.group == group and not lease.releasing]

    def turns(self, own: LogFeed | None) -> list[tuple[LogFeed, Lease | None]]:
        """The feeds that have something to pass on, *own* without a lease: each call begins with another one."""
        found: list[tuple[LogFeed, Lease | None]] = []
        if own is not None and own.has_more():
            found.append((own, None))
        for lease in self.all.values():
            if lease.feed is not None and lease.feed.has_more():
                found.append((lease.feed, lease))
        if found:
            for reader in self.readers:
                reader.passes_on()
        if len(found) > 1:
            self._turn = (self._turn + 1) % len(found)
            found = found[self._turn :] + found[: self._turn]
        return found

    def release(self, lease: Lease) -> None:
        lease.stop()
        lease.releasing = True

    def client_changed(self) -> None:
        for reader in self.readers:
            reader.client_changed()

    def release_all(self) -> bool:
        """The client has gone; whether there are some."""
        self.client_changed()
        for lease in self.all.values():
            self.release(lease)
        return len(self.all) > 0

    def forget(self) -> None:
        """Another worker has the session, with the leases in its record."""
        for lease in self.all.values():
            lease.stop()
        self.all.clear()

    # What is written.

    def fields(self) -> list[bytes]:
        """The fields to set in the record: each name is followed by its value."""
        words: list[bytes] = []
        for field, lease in self.all.items():
            if lease.due:
                lease.due, lease.under_way = False, True
                words += [field, lease.value()]
        return words

    def stored(self) -> None:
        """What `fields()` returned last is stored."""
        for lease in self.all.values():
            lease.under_way = False

    def removes(self, keys: LeaseKeys, record: bytes, client: bytes, ends: bool) -> list[Words]:
        """The releases that may be carried out now. *ends*: the session does, and nothing more of it is stored."""
        words: list[Words] = []
        for lease in self.all.values():
            if ends or (lease.releasing and not (lease.due or lease.under_way or lease.release_under_way)):
                lease.release_under_way = True
                words.append(keys.release(record, client, lease.group, lease.partition))
        return words

    def waits_to_release(self) -> bool:
        """Whether `removes()` would return something."""
        for lease in self.all.values():
            if lease.releasing and not (lease.due or lease.under_way or lease.release_under_way):
                return True
        return False

    def removed(self) -> list[Lease]:
        """What `removes()` returned last is carried out: these leases have ended."""
        ended = [lease for lease in self.all.values() if lease.release_under_way]
        for lease in ended:
            del self.all[lease_field(lease.group, lease.partition)]
        return ended
