"""The first schema: sources, inbox, people, payments, outbox, operators."""

from paidonce.store.migrations import run_file

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0001_first.sql")
