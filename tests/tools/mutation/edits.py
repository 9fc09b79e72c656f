# What can be changed in a module: each edit is one small mistake that somebody could have made.
#
# An edit puts one value into one field of the syntax tree, so that it can be applied, compiled and taken back without
# a copy. Left out is what no test could or should see: annotations, decorators, docstrings, the wording of errors,
# assertions (they say what cannot be), and edits that only ever raise a NameError or an AttributeError.
import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.USub: ast.UAdd,
}
RENAMED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
NOT_LOOKED_INTO: Final = frozenset({"annotation", "returns", "decorator_list", "bases"})
OPPOSITES: Final = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # swapped is negated
BYTE_ORDER: Final = "big"  # another is a ValueError
TEXT: Final = (str, bytes)


@dataclass(frozen=True)
class Edit:
    node: ast.AST
    field: str
    index: int | None  # of the list in *field*
    value: Any

    @contextmanager
    def applied(self) -> Iterator[None]:
        before = self._put(self.value)
        try:
            yield
        finally:
            self._put(before)

    def _put(self, value: Any) -> Any:
        before = getattr(self.node, self.field)
        if self.index is None:
            setattr(self.node, self.field, value)
            return before
        before[self.index], value = value, before[self.index]
        return value


def edits(node: ast.AST, stored: dict[str, int], constructor: bool) -> Iterator[Edit]:
    """The edits of *node* itself, not of what is in it.

    *stored* counts how often its function assigns to each name; *constructor*: that function is an __init__.
    """
    match node:
        case ast.Compare(ops=operators):
            for index, operator in enumerate(operators):
                yield Edit(node, "ops", index, SWAPPED[type(operator)]())
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str() | bytes())):
            pass  # formatting
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            if type(node.op) in SWAPPED:
                yield Edit(node, "op", None, SWAPPED[type(node.op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield Edit(node, "operand", None, ast.copy_location(_negated(operand), operand))
        case ast.UnaryOp(op=ast.USub()):
            yield Edit(node, "op", None, ast.UAdd())
        case ast.Constant(value=value) if value is not None and value is not ... and value != BYTE_ORDER:
            yield Edit(node, "value", None, _other(value))
        case ast.Return(value=ast.expr() as value) if not _is_logic(value):
            yield Edit(node, "value", None, ast.copy_location(ast.Constant(None), value))
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None:
                yield Edit(node, "lower", None, None)
            if upper is not None:
                yield Edit(node, "upper", None, None)
        case ast.Call(func=ast.Name(id=name) as called) if name in RENAMED:
            yield Edit(called, "id", None, RENAMED[name])
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not _is_opposite(node.test):
        yield Edit(node, "test", None, ast.copy_location(_negated(node.test), node.test))
    if isinstance(node, ast.comprehension):
        for index, test in enumerate(node.ifs):
            if not _is_opposite(test):
                yield Edit(node, "ifs", index, ast.copy_location(_negated(test), test))
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            for index, statement in enumerate(block):
                if _removable(statement, stored, constructor):
                    yield Edit(node, field, index, ast.copy_location(ast.Pass(), statement))


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """What is in *node* and may be edited."""
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast":
        yield from node.args[1:]
        return
    for field, value in ast.iter_fields(node):
        if field in NOT_LOOKED_INTO or (field == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not is_text(part):
                yield part


def is_text(node: ast.AST) -> bool:
    """A docstring, or another string that is evaluated for nobody."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_wording(node: ast.AST) -> bool:
    """A string as such; inside a raise it is what people read, and may be put otherwise."""
    return isinstance(node, ast.Constant) and isinstance(node.value, TEXT)


def count_stores(function: ast.AST) -> dict[str, int]:
    stored: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored[node.id] = stored.get(node.id, 0) + 1
        elif isinstance(node, ast.arg):
            stored[node.arg] = stored.get(node.arg, 0) + 1
    return stored


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _is_opposite(test: ast.expr) -> bool:
    """Another edit negates it already, or it is no question."""
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1 and isinstance(test.ops[0], OPPOSITES)
    return isinstance(test, ast.Constant) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def _is_logic(value: ast.expr) -> bool:
    """Other edits change what such an expression says, or it is None already."""
    return isinstance(value, ast.Constant | ast.Compare | ast.BoolOp | ast.UnaryOp)


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "?"
    return value + b"?" if isinstance(value, bytes) else value + 1


def _removable(statement: ast.stmt, stored: dict[str, int], constructor: bool) -> bool:
    match statement:
        case ast.Expr():
            return not is_text(statement)
        case ast.Raise() | ast.Break() | ast.Continue() | ast.Delete() | ast.AugAssign() | ast.Return(value=None):
            return True
        case ast.Assign(targets=targets):
            return any(_matters(target, stored, constructor) for target in targets)
        case ast.AnnAssign(target=target, value=ast.expr()):
            return _matters(target, stored, constructor)
    return False


def _matters(target: ast.expr, stored: dict[str, int], constructor: bool) -> bool:
    """Without the assignment *target* would have another value, rather than none at all."""
    if isinstance(target, ast.Tuple):
        return any(_matters(part, stored, constructor) for part in target.elts)
    if isinstance(target, ast.Name):
        return stored.get(target.id, 0) > 1
    return isinstance(target, ast.Subscript) or not constructor
