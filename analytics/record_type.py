# The msgspec type of a metrics record, made from the broker's RECORD.
#
# msgspec accepts what `misfit` accepts, at the speed of C: a record costs a tenth of what json and `misfit` need.
from keyword import iskeyword
from typing import Annotated, Any, Final

import msgspec

from broker.metrics.record import REAL, RECORD, TEXT, WHOLE_LIMIT, Group, Kind, Table, Value


def record_type(kind: Kind = RECORD, name: str = "record") -> Any:
    """Return the msgspec type of *kind*. The attribute of a field that is a Python keyword ends with an underscore."""
    if isinstance(kind, Value):
        whole = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_LIMIT - 1)]
        return {TEXT: str, REAL: float}.get(kind.type, whole)
    if isinstance(kind, Group):
        attributes = {field: f"{field}_" if iskeyword(field) else field for field in kind.fields}
        fields = [(attributes[field], record_type(of, field)) for field, of in kind.fields.items()]
        renamed = {attribute: field for field, attribute in attributes.items()}
        return msgspec.defstruct(name, fields, rename=renamed, gc=False)
    if isinstance(kind, Table):
        return dict[str, record_type(kind.of, name)]  # type: ignore[misc]
    return Annotated[list[record_type(kind.of, name)], msgspec.Meta(max_length=kind.most)]  # type: ignore[misc]


DECODER: Final = msgspec.json.Decoder(record_type())
