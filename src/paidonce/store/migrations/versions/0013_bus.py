"""Events leave, and are taken by their consumers."""

from paidonce.store.migrations import run_file

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0013_bus.sql")
