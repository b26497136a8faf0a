"""The whole schema of the first release."""

from paidonce.db.migrations import run_file

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_file("0001_initial.sql")
