"""Statistics, and indexes for searching events."""

from paidonce.store.migrations import run_file

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0007_statistics.sql")
