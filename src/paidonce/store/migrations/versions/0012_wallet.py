"""Reservations, and a ledger that can only grow."""

from paidonce.store.migrations import run_file

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0012_wallet.sql")
