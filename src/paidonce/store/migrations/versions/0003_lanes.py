"""The queue has lanes, and nonces are remembered."""

from paidonce.store.migrations import run_file

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0003_lanes.sql")
