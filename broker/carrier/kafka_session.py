# A fetch session with one broker of Kafka (KIP-227), and what a fetch brings: no thread, no socket.
#
# The broker remembers the partitions of a session and their offsets, and a request names only those that have changed.
# So a request for a thousand partitions that wait for records has 60 bytes, and costs nothing to write. Topics are
# named by their ids (version 13, Kafka 3.1): a topic that was deleted and made again is another topic, and is not read
# by mistake from the offset that was reached in the former one.
from struct import Struct
from typing import Any, Final, NamedTuple
from uuid import UUID

from kafka.errors import FetchSessionIdNotFoundError, UnsupportedCodecError
from kafka.protocol.consumer import FetchRequest
from kafka.record.default_records import DefaultRecordBatch

from broker.store.logs.topics import Partition

OLDEST_VERSION: Final = 13
NEWEST_VERSION: Final = 17
FETCH_BYTES: Final = 4 * 1024 * 1024  # of one answer, unless its first record is larger
PARTITION_BYTES: Final = 256 * 1024  # of one partition in it: a page, as readers are given it
LAST_EPOCH: Final = 2**31 - 1
BATCH: Final = Struct(">qi")  # offset of the first record, and length of what follows
MAGIC_AT: Final = 16  # byte of a batch that has the version of its form
MAGIC: Final = 2


class Entry(NamedTuple):
    """What is fetched of a partition."""

    topic: UUID
    offset: int
    leader_epoch: int  # of the leader that is asked; it refuses if another one has been elected
    last_epoch: int  # of the last record that was read; the leader says so if its log has another past (-1: unknown)


class FetchSession:
    def __init__(self, wait: int) -> None:
        """*wait*: milliseconds that the broker waits for records if there are none."""
        self.entries: dict[Partition, Entry] = {}  # what is to be fetched; changed by `put()` and `drop()`
        self._wait = wait
        self.known: dict[Partition, Entry] = {}  # what the broker fetches
        self._names: dict[tuple[UUID, int], Partition] = {}  # of those
        self._changed: set[Partition] = set()
        self._id = 0
        self._epoch = 0  # 0: the next request opens a session

    def put(self, partition: Partition, entry: Entry) -> None:
        self.entries[partition] = entry
        self._changed.add(partition)

    def drop(self, partition: Partition) -> None:
        if self.entries.pop(partition, None) is not None:
            self._changed.add(partition)

    def reset(self) -> None:
        """Open another session with the next request: the broker may not have got the last one."""
        self._epoch = 0

    def request(self) -> Any:
        """The next request; `answered()` is to be called with its answer, or `reset()`."""
        if self._epoch == 0:
            self.known = {}
            self._names = {}
            self._changed = {*self.entries}
        sent: dict[UUID, list[Any]] = {}
        forgotten: dict[UUID, list[int]] = {}
        for partition in self._changed:
            old, new = self.known.get(partition), self.entries.get(partition)
            if old is not None and (new is None or new.topic != old.topic):
                forgotten.setdefault(old.topic, []).append(partition.number)
                del self.known[partition]
                del self._names[old.topic, partition.number]
            if new is not None and new != old:
                self.known[partition] = new
                self._names[new.topic, partition.number] = partition
                sent.setdefault(new.topic, []).append(
                    FetchRequest.FetchTopic.FetchPartition(
                        partition=partition.number,
                        current_leader_epoch=new.leader_epoch,
                        fetch_offset=new.offset,
                        last_fetched_epoch=new.last_epoch,
                        partition_max_bytes=PARTITION_BYTES,
                    )
                )
        self._changed.clear()
        return FetchRequest(
            max_wait_ms=self._wait,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=0,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=[FetchRequest.FetchTopic(topic_id=topic, partitions=parts) for topic, parts in sent.items()],
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic_id=topic, partitions=parts) for topic, parts in forgotten.items()
            ],
            rack_id="",
            min_version=OLDEST_VERSION,
            max_version=NEWEST_VERSION,
        )

    def answered(self, response: Any) -> list[tuple[Partition, Entry, Any]]:
        """Partitions in *response*, what was asked for, and what there is. No others: there is nothing new."""
        if response.error_code != 0:
            if response.error_code == FetchSessionIdNotFoundError.errno:
                self._id = 0
            self.reset()  # otherwise with the id of the session, which the broker closes
            return []
        if response.session_id == 0:  # the broker has too many sessions, or has closed this one
            self._id = self._epoch = 0
        else:
            self._id = response.session_id
            self._epoch = self._epoch + 1 if self._epoch < LAST_EPOCH else 1
        found = []
        for topic in response.responses:
            for data in topic.partitions:
                partition = self._names.get((topic.topic_id, data.partition_index))
                if partition is not None:
                    found.append((partition, self.known[partition], data))
        return found


class Page(NamedTuple):
    """Records of one partition."""

    first: int  # the offset that was asked for
    records: list[tuple[int, bytes]]  # offset and content
    next: int  # the offset behind them
    epoch: int  # of the leader that wrote the last one; -1: there is none
    bytes: int


def page_of(data: bytes, offset: int) -> Page:
    """The records in *data*, of a fetch, from *offset* on. UnsupportedCodecError, ValueError: nothing can be read.

    A batch that is damaged is a record, whose content is all of it: no record of Weir looks like that. If it had
    several, it comes again, for the next one.
    """
    records: list[tuple[int, bytes]] = []
    following, epoch, at = offset, -1, 0
    while at + MAGIC_AT < len(data):
        _, length = BATCH.unpack_from(data, at)
        end = at + BATCH.size + length
        if length <= 0 or data[at + MAGIC_AT] != MAGIC:
            if not records:
                raise ValueError("a batch of records that is older than Kafka 0.11, or no batch")
            break
        if end > len(data):  # cut by the limit of bytes
            break
        content = bytes(data[at:end])
        try:
            batch = DefaultRecordBatch(content)
            if not batch.validate_crc():
                raise ValueError("another checksum than its content")
            if not batch.is_control_batch:
                records += [(one.offset, one.value or b"") for one in batch if one.offset >= offset]
            following, epoch = batch.next_offset, batch.leader_epoch
        except UnsupportedCodecError:
            if not records:
                raise
            break
        except Exception:  # whatever kafka-python does with bytes that make no sense
            records.append((following, content))
            following += 1
        at = end
    return Page(offset, records, following, epoch, at)
