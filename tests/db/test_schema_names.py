"""All SQL names the schema of our tables, so that none of them is taken for the application's."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest

import paidonce
from paidonce.db.pool import Database
from paidonce.db.queries import Query, in_schema
from paidonce.db.schema import VERSIONS
from tests.support.postgres import SCHEMA

ROOT: Final = Path(__file__).parents[2]
OWN_TABLES: Final = ("benchmarks/peer", "benchmarks/tuned_peer", "benchmarks/contenders.py")
"""Programs that Paidonce is compared with. They have tables of the same names."""
PLACEHOLDER: Final = "{}"
TEMPORARY: Final = ("statement_ids", "readiness_probe")

_CREATED: Final = re.compile(r"^CREATE (TABLE|SEQUENCE|TYPE|FUNCTION) (?:paidonce\.)?(\w+)", re.M)
_DDL: Final = "\n".join(path.read_text() for path in VERSIONS.glob("*.sql"))
_OURS: Final = {name for _, name in _CREATED.findall(_DDL)} | {"alembic_version"}
_NAME: Final = rf"(?:{'|'.join(sorted(_OURS, key=len, reverse=True))})(?:_\d{{4}}_\d{{2}})?\b"
_BEFORE: Final = (
    "FROM|JOIN|INTO|UPDATE|TABLE|ONLY|SEQUENCE|TYPE|REFERENCES|USING|LIKE|ON|COPY|PARTITION"
    "|TRUNCATE|VACUUM|ANALYZE|IF EXISTS|IF NOT EXISTS|EXECUTE FUNCTION|CREATE FUNCTION"
)
_FUNCTIONS: Final = "|".join(name for kind, name in _CREATED.findall(_DDL) if kind == "FUNCTION")
UNQUALIFIED: Final = re.compile(
    rf"\b(?:{_BEFORE})\s+{_NAME}(?!\.)"
    rf"|\bFROM [^;()]*,\s+{_NAME} AS\b"
    rf"|\bLOCK TABLE [^;]*?,\s+{_NAME}(?!\.)"
    rf"|::\s*{_NAME}|'{_NAME}'::reg|\b(?:to_reg\w+|nextval|setval|pg_\w*size)\('{_NAME}'"
    rf"|(?<![\w.:])(?:{_FUNCTIONS})\("
    rf"|\b(?:TABLE|INTO|FROM|JOIN|PARTITION)\s+{re.escape(PLACEHOLDER)}"
)


def unqualified(text: str) -> list[str]:
    """The uses of our names without the schema."""
    code = re.sub(r"--.*", "", text)
    return [" ".join(found[0].split()) for found in UNQUALIFIED.finditer(code)]


def python_strings(path: Path) -> Iterator[str]:
    """The strings of a module, except docstrings; values that are put in are PLACEHOLDER."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    parts = {
        id(one) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for one in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(one.value) if isinstance(one, ast.Constant) else PLACEHOLDER
                for one in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in documentation | parts:
            yield node.value if isinstance(node.value, str) else ""


def files(ending: str) -> list[Path]:
    return [
        path
        for folder in ("src", "benchmarks")
        for path in sorted((ROOT / folder).rglob(f"*.{ending}"))
        if not str(path.relative_to(ROOT)).startswith(OWN_TABLES)
    ]


@pytest.mark.parametrize("path", files("sql"), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_of_ours_in_a_sql_file_has_the_schema(path: Path) -> None:
    """DAT-1"""
    assert unqualified(path.read_text(encoding="utf-8")) == []


def test_every_name_of_ours_in_sql_that_python_composes_has_the_schema() -> None:
    """DAT-1"""
    found = [(path, one) for path in files("py") for one in python_strings(path)]
    assert len(found) > 1000
    assert [(str(path), names) for path, one in found if (names := unqualified(one))] == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM payments",
        "INSERT INTO\n  orders (id) VALUES (1)",
        "SELECT 1 FROM paidonce.orders AS o, users AS u",
        "UPDATE event_queue AS q SET run_at = now()",
        "SELECT unnest($1::written_payment[])",
        "SELECT require_written(1, 1)",
        "CREATE INDEX a ON sources (id)",
        "REFERENCES users",
        "ALTER TABLE webhook_events_2026_01 RENAME TO x",
        "DROP TABLE {}",
        "SELECT 'webhook_events'::regclass, 1",
        "SELECT nextval('outbox_positions')",
    ],
)
def test_a_name_without_the_schema_is_found(sql: str) -> None:
    """DAT-1: a test that finds nothing would prove nothing."""
    assert unqualified(sql)
    assert not unqualified(
        "SELECT refunds.id FROM paidonce.refunds JOIN x USING (id) -- FROM users"
    )


async def test_no_query_needs_a_search_path(database: Database) -> None:
    """DAT-1: PostgreSQL finds every table, type and function of ours without one.

    Some queries have marked lines that exclude each other, and cannot be prepared as a whole.
    """
    undefined, prepared = [], 0
    async with database.connection() as connection:
        await connection.execute("SET search_path = ''")
        for where, query in _queries():
            try:
                await connection.prepare(in_schema(query.sql, SCHEMA))
                prepared += 1
            except (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError) as error:
                undefined.append((where, query.name, str(error)))
            except asyncpg.UndefinedObjectError as error:
                undefined.append((where, query.name, str(error)))
            except (asyncpg.PostgresSyntaxError, asyncpg.UndefinedColumnError):
                pass
    assert prepared > 200
    assert [one for one in undefined if not any(name in one[2] for name in TEMPORARY)] == []


def _queries() -> Iterator[tuple[str, Query]]:
    for found in pkgutil.walk_packages(paidonce.__path__, "paidonce."):
        if "migrations" in found.name or "__main__" in found.name or "kafka" in found.name:
            continue
        queries = getattr(importlib.import_module(found.name), "QUERIES", {})
        yield from ((found.name, query) for query in queries.values())
