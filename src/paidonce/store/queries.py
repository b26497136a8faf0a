"""Named queries from .sql files.

A file holds blocks that begin with `-- name: some_query`; parameters are written `:like_this` and
become $1, $2, … in the order of their first appearance.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection  # generic in its stubs only

_BLOCK: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_NUMBER: Final = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class Query:
    """One statement and the names of its parameters."""

    name: str
    sql: str
    parameters: tuple[str, ...]

    def without(self, *marks: str) -> "Query":
        """The same query without the lines that end in one of these marks, written `-- mark`.

        Parameters that stood only there are none any more.
        """
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

    def on(self, table: str, instead_of: str) -> "Query":
        """The same query on another table of the same shape. The name must be one of ours."""
        sql = re.sub(rf"\b{instead_of}\b", table, self.sql)
        return Query(f"{self.name}_on_{table}", sql, self.parameters)

    async def rows(self, connection: Connection, **values: object) -> Sequence[asyncpg.Record]:
        """All rows. A missing or surplus parameter is a KeyError or TypeError."""
        return await connection.fetch(self.sql, *self._arguments(values))

    async def row(self, connection: Connection, **values: object) -> asyncpg.Record | None:
        """The first row, or none."""
        return await connection.fetchrow(self.sql, *self._arguments(values))

    async def run(self, connection: Connection, **values: object) -> str:
        """Run it for its effect; returns the command tag, such as `INSERT 0 1`."""
        return await connection.execute(self.sql, *self._arguments(values))

    def _arguments(self, values: dict[str, object]) -> list[object]:
        if len(values) != len(self.parameters):
            surplus = values.keys() - set(self.parameters)
            raise TypeError(f"{self.name}: surplus parameters {sorted(surplus)}")
        return [values[name] for name in self.parameters]


def load_queries(beside: str) -> dict[str, Query]:
    """The queries of the .sql file that lies beside the module `beside` (its `__file__`)."""
    text = Path(beside).with_suffix(".sql").read_text(encoding="utf-8")
    _, *blocks = _BLOCK.split(text)
    return {name: _query(name, body) for name, body in zip(blocks[::2], blocks[1::2], strict=True)}


def _query(name: str, body: str) -> Query:
    lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
    text = "\n".join(lines).strip().removesuffix(";")
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    numbers = {parameter: f"${number}" for number, parameter in enumerate(names, 1)}
    return Query(name, _PARAMETER.sub(lambda found: numbers[found[1]], text), names)
