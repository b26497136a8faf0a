"""The benchmark runs, and its table compares Paidonce with the hand-written handler."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SMALLEST: Final = (
    "--no-write --rounds 1 --seconds 0.5 --warmup 0.2 --connections 4 --users 50 --patience 0"
)


def test_a_short_run_measures_both_contenders_without_errors() -> None:
    """SPD-1"""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", *SMALLEST.split(), "--only=peer", "--only=paidonce"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    rows = [_cells(line) for line in run.stdout.splitlines() if line.startswith("│")]
    assert [row[1] for row in rows] == ["FastAPI + SQLAlchemy", "Paidonce"]
    assert [row[-1] for row in rows] == ["0", "0"]  # errors
    assert all(float(row[2].replace(",", "")) > 0 for row in rows)  # acked/s


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split("│", line)[1:-1]]
