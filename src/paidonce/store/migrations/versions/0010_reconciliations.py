"""Reconciliations: what gateways say, beside what is here."""

from paidonce.store.migrations import run_file

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0010_reconciliations.sql")
