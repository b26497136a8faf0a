"""Notices: what people are told of."""

from paidonce.store.migrations import run_file

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0009_notices.sql")
