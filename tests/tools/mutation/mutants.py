# A mutant: one module with one edit, and where it can be seen.
#
# An edit inside a function is put into the function that is there, by its code; whoever imported it has it. What runs
# while a module is imported (constants, tables, defaults) has gone everywhere by then: see trial.py.
import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final

from tests.tools.mutation.edits import Edit, count_stores, edits, is_wording, parts

WIDTH: Final = 110  # of a line that shows a change

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """The outermost function around an edit, named as its code object names itself."""

    name: str
    line: int


@dataclass(frozen=True)
class Mutant:
    path: Path  # from the root of the sources
    tree: ast.Module
    edit: Edit
    place: Place | None  # None: outside of functions
    lines: range  # of the statement; for one with a block, of what stands before the block
    before: str
    after: str

    def compile(self, root: Path) -> CodeType:
        with self.edit.applied():
            ast.fix_missing_locations(self.tree)
            return compile(self.tree, str(root / self.path), "exec", dont_inherit=True)

    def __str__(self) -> str:
        before, after = _shortened(self.before, self.after)
        return f"{self.path}:{self.lines.start}\n    - {before}\n    + {after}"


def mutants_of(root: Path, path: Path) -> list[Mutant]:
    tree = ast.parse((root / path).read_text(), str(path))
    return list(_Search(path, tree).below(tree, None, {}, False))


class _Search:
    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path = path
        self._tree = tree
        self._names: list[str] = []  # of the classes around
        self._statement: ast.stmt = ast.Pass(lineno=1, col_offset=0)
        self._place: Place | None = None

    def below(self, node: ast.AST, place: Place | None, stored: dict[str, int], raising: bool) -> Iterator[Mutant]:
        constructor = place is not None and place.name.endswith(".__init__")
        for edit in edits(node, stored, constructor):
            yield self._mutant(edit, place)
        for part in parts(node):
            if raising and is_wording(part):
                continue
            outside = self._statement
            if isinstance(part, ast.stmt):
                self._statement = part
            if isinstance(part, ast.ClassDef):
                self._names.append(part.name)
                yield from self.below(part, place, stored, False)
                self._names.pop()
            elif isinstance(part, Function) and place is None:
                yield from self._function(part)
            else:
                yield from self.below(part, place, stored, raising or isinstance(part, ast.Raise))
            self._statement = outside

    def _function(self, function: Function) -> Iterator[Mutant]:
        line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        place = Place(".".join([*self._names, function.name]), line)
        stored = count_stores(function)
        yield from self.below(function.args, None, stored, False)  # defaults
        block = ast.Module(function.body, [])  # shares the list, so what is removed from it is removed
        yield from self.below(block, place, stored, False)

    def _mutant(self, edit: Edit, place: Place | None) -> Mutant:
        statement = self._statement
        removed = isinstance(edit.value, ast.Pass)
        if removed and edit.index is not None:
            statement = getattr(edit.node, edit.field)[edit.index]
        before = _header(statement)
        with edit.applied():
            after = "pass" if removed else _header(statement)
        block = getattr(statement, "body", None)
        last = block[0].lineno - 1 if block else statement.end_lineno or statement.lineno
        lines = range(statement.lineno, max(last, statement.lineno) + 1)
        return Mutant(self._path, self._tree, edit, place, lines, before, after)


def _header(statement: ast.stmt) -> str:
    """*statement* in one line, without its block."""
    if not hasattr(statement, "body"):
        return ast.unparse(statement)
    bare = copy.copy(statement)
    for field in ("orelse", "finalbody", "handlers", "decorator_list"):
        if hasattr(bare, field):
            setattr(bare, field, [])
    bare.body = [ast.Pass()]
    return ast.unparse(bare).splitlines()[0]


def _shortened(before: str, after: str) -> tuple[str, str]:
    """Both lines from a little before the first difference on, where they are long."""
    same = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    begin = max(0, same - WIDTH // 2) if max(len(before), len(after)) > WIDTH else 0
    cut = "..." if begin else ""
    return cut + before[begin : begin + WIDTH], cut + after[begin : begin + WIDTH]
