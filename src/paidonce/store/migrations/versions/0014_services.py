"""Payments out of a wallet, their gateway's callbacks, and what is shown of them."""

from paidonce.store.migrations import run_file

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0014_services.sql")
