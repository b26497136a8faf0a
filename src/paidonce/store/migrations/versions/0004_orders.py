"""Orders of every kind, wallets with their ledger, and reversal."""

from paidonce.store.migrations import run_file

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0004_orders.sql")
