"""Random histories over all sources and kinds of orders agree with a model of the requirements.

Real processes, real sockets, real SIGKILL. A failure names the seeds of the histories that differ:
`TEST_MODEL_SEEDS=17,23` runs only these. One that fails alone, too, is shown without the steps that
do not matter.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.model.check import check_ledger, differences, seen
from tests.model.cluster import Cluster, started_cluster
from tests.model.histories import History, history
from tests.model.runner import run_all

WAYS: Final = {
    "inline": ("inline", 1, False),
    "queued by two": ("queued", 2, False),
    "inline by two, killed": ("inline", 2, True),
    "queued, killed": ("queued", 1, True),
}
"""Mode, number of processes, and whether these are killed."""
SIDE_BY_SIDE: Final = 6
GROUPS: Final = (30, 42)
"""So many in `make test`, and in `make soak`: a thousand histories."""
MAX_TRIES: Final = 40
"""How often a failing history is run again to find the steps that matter."""


@pytest.mark.parametrize("way", WAYS)
def test_random_histories_agree_with_the_model(
    database_url: str, tmp_path: Path, way: str, pytestconfig: pytest.Config
) -> None:
    """REL-3 PAY-2 PAY-3 PAY-10 FUL-4: facts decide, not the order in which they arrive."""
    mode, processes, has_kills = WAYS[way]
    groups = GROUPS[bool(pytestconfig.getoption("--soak"))]
    with started_cluster(tmp_path, database_url, mode, processes) as cluster:
        for seeds in _seeds(6000, groups):
            _run(cluster, seeds, has_kills)


def _seeds(first: int, groups: int) -> list[list[int]]:
    if "TEST_MODEL_SEEDS" in os.environ:
        return [[int(one) for one in os.environ["TEST_MODEL_SEEDS"].split(",")]]
    firsts = range(first, first + groups * SIDE_BY_SIDE, SIDE_BY_SIDE)
    return [list(range(one, one + SIDE_BY_SIDE)) for one in firsts]


def _run(cluster: Cluster, seeds: Sequence[int], has_kills: bool) -> None:
    histories = [history(seed, f"h{seed}", has_kills) for seed in seeds]
    wrong = _differences(cluster, histories, seeds[0])
    told = [
        f"seed {seed}: {', '.join(one)}\n{_shrunk(cluster, seed, has_kills) or _shown(made)}"
        for seed, one, made in zip(seeds, wrong, histories, strict=True)
        if one
    ]
    assert not told, "\n\n".join(told)


def _differences(cluster: Cluster, histories: Sequence[History], seed: int) -> list[list[str]]:
    runs = run_all(cluster, histories, Random(seed))
    found = seen(cluster)
    check_ledger(cluster)
    return [differences(run, found) for run in runs]


def _shrunk(cluster: Cluster, seed: int, has_kills: bool) -> str | None:
    """The history alone, without the steps that do not matter; None if alone it is right."""
    dropped, smallest = set[int](), None
    number = sum(len(batch) for batch in history(seed, "", has_kills).batches)
    for attempt in range(-1, min(number, MAX_TRIES)):
        tried = dropped | {number - 1 - attempt} if attempt >= 0 else dropped
        made = history(seed, f"h{seed}t{attempt + 1}", has_kills).without(tried)
        (wrong,) = _differences(cluster, [made], seed)
        if wrong:
            dropped, smallest = tried, f"{', '.join(wrong)}\n{_shown(made)}"
        elif attempt < 0:
            return None
    return smallest


def _shown(told: History) -> str:
    lines = [str(one) for one in (*told.orders.values(), *told.payments.values())]
    return "\n".join(lines + [f"  {batch}" for batch in told.batches if batch])
