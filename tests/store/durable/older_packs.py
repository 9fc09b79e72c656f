# Packs as builds wrote them that know DURABLE_FORMAT 3 and no newer one.
from broker.store.durable.pack import HEAD, LONG_HEAD, decode_pack, form_of


def older(data: bytes) -> bytes:
    """The pack *data* of this build as those builds wrote it."""
    pack = decode_pack(data, 0.0, 0.0)
    return LONG_HEAD.pack(form_of(data), pack.stored_at, pack.end, pack.due) + data[HEAD.size :]
