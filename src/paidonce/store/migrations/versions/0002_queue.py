"""Rows of the queue can be sent with the rest of a batch."""

from paidonce.store.migrations import run_file

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0002_queue.sql")
