"""Named queries from .sql files: one `queries.sql` for each folder.

A file consists of blocks that begin with `-- name: some_query`. Parameters are written `:like_this`
and become $1, $2, … in the order of their first appearance.

What is ours has the prefix `paidonce.`, in Python too. Where an installation has another schema,
`in_schema` puts it in place of the prefix, also within literals: the key of an advisory lock is the
hash of such a name, so that two installations in one database have locks of their own.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import asyncpg

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection  # generic in its stubs only

T = TypeVar("T", bound="DataclassInstance")

Row = Mapping[str, Any]
WrittenRow = tuple[object, ...]
"""The values of a row to be written, in the order of its composite type or its columns."""

SCHEMA: Final = "paidonce"
"""The schema that SQL names."""
MAX_STATEMENTS: Final = 4096  # whose text for another schema is remembered

_PREFIX: Final = re.compile(rf"\b{SCHEMA}\.")
_BLOCK: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_NUMBER: Final = re.compile(r"\$(\d+)")


class Connection(_Connection):
    """A connection that knows in which schema our tables are. Its search path is the role's own."""

    schema: ClassVar[str] = SCHEMA
    settings: ClassVar[str] = ""
    """Statements that set what was not sent with the connection."""

    def get_reset_query(self) -> str:
        return f"{super().get_reset_query()}\n{self.settings}"


@cache
def connection_class(schema: str, settings: str = "") -> type[Connection]:
    """The class of the connections to an installation in this schema."""
    return type("Connection", (Connection,), {"schema": schema, "settings": settings})


@lru_cache(MAX_STATEMENTS)
def in_schema(sql: str, schema: str) -> str:
    """The SQL for an installation in this schema."""
    return sql if schema == SCHEMA else _PREFIX.sub(f'"{schema}".', sql)


@dataclass(frozen=True, slots=True)
class Query:
    """One statement and the names of its parameters."""

    name: str
    sql: str
    parameters: tuple[str, ...]

    def without(self, *marks: str) -> "Query":
        """The same query without the lines that end in `-- mark` (and their parameters)."""
        ends = tuple(f"-- {mark}" for mark in marks)
        lines = [line for line in self.sql.splitlines() if not line.endswith(ends)]
        text = "\n".join(lines)
        used = sorted({int(number) for number in _NUMBER.findall(text)})
        numbers = {str(old): f"${new}" for new, old in enumerate(used, 1)}
        return Query(
            f"{self.name}_without_{'_'.join(marks)}",
            _NUMBER.sub(lambda found: numbers[found[1]], text),
            tuple(self.parameters[number - 1] for number in used),
        )

    def renamed(self, **names: str) -> "Query":
        """The same query with other words, such as tables or columns. Not for text from outside."""
        words = re.compile(rf"\b({'|'.join(names)})\b")
        sql = words.sub(lambda found: names[found[1]], self.sql)
        return Query(self.name, sql, self.parameters)

    async def rows(self, connection: Connection, **values: object) -> Sequence[asyncpg.Record]:
        """All rows. A missing or surplus parameter is a KeyError or TypeError."""
        return await connection.fetch(self._text(connection), *self._arguments(values))

    async def row(self, connection: Connection, **values: object) -> asyncpg.Record | None:
        """The first row, or none."""
        return await connection.fetchrow(self._text(connection), *self._arguments(values))

    async def value(self, connection: Connection, **values: object) -> Any:
        """The first column of the first row; None if there is no row."""
        return await connection.fetchval(self._text(connection), *self._arguments(values))

    async def run(self, connection: Connection, **values: object) -> str:
        """Run it for its effect; returns the command tag, such as `INSERT 0 1`."""
        return await connection.execute(self._text(connection), *self._arguments(values))

    async def run_with_rows(
        self, connection: Connection, rows: Sequence[WrittenRow], **others: object
    ) -> str:
        """Run it with an array for each column of the rows, in the order of its parameters."""
        names = [name for name in self.parameters if name not in others]
        arrays = dict(zip(names, zip(*rows, strict=True), strict=True))
        return await self.run(connection, **arrays, **others)

    def _text(self, connection: Connection) -> str:
        return in_schema(self.sql, connection.schema)

    def _arguments(self, values: dict[str, object]) -> list[object]:
        if len(values) != len(self.parameters):
            surplus = values.keys() - set(self.parameters)
            raise TypeError(f"{self.name}: surplus parameters {sorted(surplus)}")
        return [values[name] for name in self.parameters]


def from_row(record: type[T], row: asyncpg.Record | Row, **others: object) -> T:
    """A record whose fields are given here, or are columns of the row. It may have more columns."""
    names = {one.name for one in fields(record)} - others.keys()
    return record(**{name: row[name] for name in names}, **others)


def columns_of(items: Collection[object], *names: str) -> dict[str, list[object]]:
    """These attributes of the items, each as the array that a query unnests."""
    return {name: [getattr(one, name) for one in items] for name in names}


def load_queries(module: str) -> dict[str, Query]:
    """The queries of a module's folder: its `queries.sql`. `module` is the module's `__file__`.

    A .sql file with the module's own name is loaded instead, where there is one.
    """
    path = Path(module)
    own = path.with_suffix(".sql")
    return _load_file(own if own.exists() else path.parent / "queries.sql")


@cache
def _load_file(path: Path) -> dict[str, Query]:
    _, *blocks = _BLOCK.split(path.read_text(encoding="utf-8"))
    names = blocks[::2]
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: two queries have one name")
    return {name: _query(name, body) for name, body in zip(names, blocks[1::2], strict=True)}


def _query(name: str, body: str) -> Query:
    lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
    text = "\n".join(lines).strip().removesuffix(";")
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    numbers = {parameter: f"${number}" for number, parameter in enumerate(names, 1)}
    return Query(name, _PARAMETER.sub(lambda found: numbers[found[1]], text), names)
