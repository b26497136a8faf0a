"""Named queries: what the loader makes of a .sql file."""

from pathlib import Path

import pytest

from paidonce.db import schema
from paidonce.db.pool import Database
from paidonce.db.queries import in_schema, load_queries
from paidonce.events import store as events_store
from paidonce.keys import service as key_service
from paidonce.processing import store as processing_store
from paidonce.queue import store as queue_store
from paidonce.statistics import counting
from paidonce.users import merge as user_merge
from paidonce.users import person as user_person
from paidonce.users import store as user_store

TEXT = """
-- A comment before everything.
-- name: first
-- What it does: not :a_parameter.
SELECT :one::text, :two + :one, 'a'::text
  -- :commented out
  FROM somewhere WHERE time = '12:30' AND kind = :two;

-- name: second
SELECT 1;
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "some.sql").write_text(TEXT)
    return str(tmp_path / "some.py")


def test_blocks_become_queries_by_name(module: str) -> None:
    """DAT-1"""
    queries = load_queries(module)
    assert list(queries) == ["first", "second"]
    assert queries["second"].sql == "SELECT 1"
    assert queries["second"].parameters == ()


def test_the_modules_of_a_folder_share_its_queries(tmp_path: Path) -> None:
    """DAT-1"""
    (tmp_path / "queries.sql").write_text(TEXT)
    one, other = (load_queries(str(tmp_path / name)) for name in ("one.py", "other.py"))
    assert list(one) == ["first", "second"]
    assert one is other


def test_two_queries_of_one_name_are_an_error(tmp_path: Path) -> None:
    """DAT-1"""
    (tmp_path / "queries.sql").write_text(TEXT + TEXT)
    with pytest.raises(ValueError, match="one name"):
        load_queries(str(tmp_path / "some.py"))


def test_parameters_are_numbered_by_first_appearance_and_casts_are_left_alone(module: str) -> None:
    """DAT-1"""
    first = load_queries(module)["first"]
    assert first.parameters == ("one", "two")
    assert "$1::text, $2 + $1, 'a'::text" in first.sql
    assert "kind = $2" in first.sql
    assert ":30" in first.sql
    assert "commented" not in first.sql


async def test_a_missing_or_surplus_parameter_is_an_error(database: Database, module: str) -> None:
    """DAT-1: before anything is sent."""
    first = load_queries(module)["first"]
    async with database.connection() as connection:
        with pytest.raises(TypeError, match="third"):
            await first.rows(connection, one=1, two=2, third=3)
        with pytest.raises((TypeError, KeyError)):
            await first.rows(connection, one=1)
        with pytest.raises(KeyError, match="two"):
            await first.rows(connection, one=1, tow=2)


@pytest.mark.parametrize(
    "module",
    [
        queue_store,
        key_service,
        events_store,
        user_store,
        user_merge,
        user_person,
        schema,
        processing_store,
        counting,
    ],
)
async def test_every_query_of_ours_is_one_that_postgresql_understands(
    database: Database, module: object
) -> None:
    """DAT-1"""
    queries = vars(module)["QUERIES"]
    assert queries
    async with database.connection() as connection:
        for query in queries.values():
            statement = await connection.prepare(in_schema(query.sql, connection.schema))
            assert len(statement.get_parameters()) == len(query.parameters)
