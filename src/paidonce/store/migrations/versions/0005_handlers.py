"""A handler of the user's own cannot end the transaction that it is called in."""

from paidonce.store.migrations import run_file

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0005_handlers.sql")
