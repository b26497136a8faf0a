"""The schema, as Alembic migrations of plain SQL. They only go forward."""

from pathlib import Path
from typing import Final

from alembic import op

FOLDER: Final = Path(__file__).parent


def run_file(name: str) -> None:
    """Run a .sql file of the versions folder; an empty line separates its statements.

    One at a time, because the driver prepares what it runs and PostgreSQL prepares single
    statements only.
    """
    script = (FOLDER / "versions" / name).read_text(encoding="utf-8")
    for statement in script.split("\n\n"):
        if any(line and not line.startswith("--") for line in statement.splitlines()):
            op.execute(statement.strip().removesuffix(";"))
