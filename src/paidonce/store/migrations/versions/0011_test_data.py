"""Payments that were made for a test say so."""

from paidonce.store.migrations import run_file

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0011_test_data.sql")
