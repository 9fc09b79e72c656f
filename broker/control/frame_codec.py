# The format of the frames between the supervisor and its workers: four bytes of length (big-endian), then one msgpack
# map with the frame's kind (the name of its class) and its fields. frames.py declares the frames.
#
# A frame is a dataclass, and the types of its fields are the validation: what arrives has exactly the declared fields
# and types, or is a FrameError. Both ends run the same version of Weir, so a wrong frame is a bug: the reader closes
# the link and does not try to continue.
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgpack

from broker.store.redis.address import RedisAddress, from_parts
from broker.worker_id import WorkerId

LENGTH: Final = 4  # bytes
LARGEST: Final = 16 * 1024 * 1024  # bytes; far more than the longest list of clients in one answer
KIND: Final = "kind"

Decoder = Callable[[object], Any]  # a decoder raises ValueError if the value is not of its type


class FrameError(Exception):
    """The bytes are no valid frame. The text says why."""


class Frame:
    """The base of all frames: frozen dataclasses with fields of the types that `_decoder()` knows."""


F = TypeVar("F", bound=Frame)


def encode(frame: Frame) -> bytes:
    """The bytes of *frame*. FrameError: there are too many."""
    kind = type(frame).__name__
    values = {field.name: getattr(frame, field.name) for field in fields(frame)}  # type: ignore[arg-type]
    body: bytes = msgpack.packb({KIND: kind, **values}, default=_plain)
    if len(body) > LARGEST:
        raise FrameError(f"a frame {kind} of {len(body)} bytes")
    return len(body).to_bytes(LENGTH, "big") + body


def body_length(header: bytes) -> int:
    """The number of bytes after *header*, which has LENGTH bytes. FrameError."""
    length = int.from_bytes(header, "big")
    if length > LARGEST:
        raise FrameError(f"a frame of {length} bytes")
    return length


class FrameDecoder(Generic[F]):
    """Decodes the frames of one direction: those of the classes *kinds*."""

    def __init__(self, kinds: Sequence[type[F]]) -> None:
        self._kinds = {kind.__name__: (kind, _field_decoders(kind)) for kind in kinds}

    def decode(self, body: bytes) -> F:
        """The frame with *body*. FrameError."""
        try:
            found = msgpack.unpackb(body)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a frame that is not msgpack: {error}") from None
        name = found.pop(KIND, None) if isinstance(found, dict) else None
        if not isinstance(name, str) or name not in self._kinds:
            raise FrameError(f"a frame of the unknown kind {name!r}")
        kind, decoders = self._kinds[name]
        if found.keys() != decoders.keys():
            raise FrameError(f"a frame {name} whose fields are not {', '.join(decoders) or 'none'}")
        try:
            return kind(**{field: decoders[field](value) for field, value in found.items()})
        except ValueError as error:
            raise FrameError(f"a frame {name} with a field of the wrong type: {error}") from None


class FrameReader(Generic[F]):
    """Takes frames out of a stream of bytes that arrives in pieces of any size."""

    def __init__(self, decoder: FrameDecoder[F]) -> None:
        self._decoder = decoder
        self._held = bytearray()

    def feed(self, data: bytes) -> list[F]:
        """The frames that *data* completes. FrameError."""
        held = self._held
        held += data
        found = []
        position = 0
        while position + LENGTH <= len(held):
            end = position + LENGTH + body_length(bytes(held[position : position + LENGTH]))
            if end > len(held):
                break
            found.append(self._decoder.decode(bytes(held[position + LENGTH : end])))
            position = end
        del held[:position]
        return found


def _plain(value: object) -> object:
    """What msgpack writes for a *value* that it does not know."""
    if isinstance(value, RedisAddress):
        return value.parts()
    if isinstance(value, WorkerId):
        return [value.node, value.shard, value.incarnation]
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    raise TypeError(f"{type(value).__name__} in a frame")


def _field_decoders(kind: type) -> dict[str, Decoder]:
    hints = get_type_hints(kind)
    return {field.name: _decoder(hints[field.name]) for field in fields(kind)}


def _decoder(hint: Any) -> Decoder:
    """The decoder of values of the type *hint*."""
    if hint is Any:
        return lambda value: value
    if hint in (bool, int, str):
        return lambda value: _expect(value, hint)
    if hint is RedisAddress:
        return lambda value: from_parts(_expect(value, list))
    if hint is WorkerId:
        identity = [_decoder(str), _decoder(int), _decoder(int)]
        return lambda value: WorkerId(*_each(identity, value))
    if isinstance(hint, type) and is_dataclass(hint):
        make: Callable[..., object] = hint
        parts = [*_field_decoders(hint).values()]
        return lambda value: make(*_each(parts, value))
    arguments = get_args(hint)
    if get_origin(hint) is list:
        item = _decoder(arguments[0])
        return lambda value: [item(one) for one in _expect(value, list)]
    if get_origin(hint) is tuple:
        items = [_decoder(one) for one in arguments]
        return lambda value: (*_each(items, value),)
    if get_origin(hint) is dict and arguments[0] is str:
        entry = _decoder(arguments[1])
        return lambda value: {_expect(key, str): entry(one) for key, one in _expect(value, dict).items()}
    raise TypeError(f"a field of a frame cannot be of the type {hint}")


def _expect(value: object, kind: type) -> Any:
    if type(value) is not kind:  # not isinstance: True is no int here
        raise ValueError(f"{value!r:.100} is no {kind.__name__}")
    return value


def _each(decoders: Sequence[Decoder], value: object) -> list[Any]:
    values = _expect(value, list)
    if len(values) != len(decoders):
        raise ValueError(f"{len(values)} values instead of {len(decoders)}")
    return [decoder(one) for decoder, one in zip(decoders, values, strict=True)]
