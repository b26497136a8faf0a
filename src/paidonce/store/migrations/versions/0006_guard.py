"""Who was banned, who is known, and keys that are hashed with a pepper."""

from paidonce.store.migrations import run_file

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file("0006_guard.sql")
