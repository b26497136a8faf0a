"""Replays: events that are processed again."""

from paidonce.store.migrations import run_file

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0008_replays.sql")
