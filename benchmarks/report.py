"""The results as a table on the terminal and in docs/benchmarks.md."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.rounds import Figures, Measurement, Plan, median_of

PEER, TUNED_PEER, OURS = "peer", "tuned_peer", "paidonce"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
COLUMNS = (
    "conns",
    "contender",
    "events/s",
    "low",
    "high",
    "ratio",
    "p50 ms",
    "p99 ms",
    "app µs",
    "db µs",
    "WAL B",
    "others",
    "errors",
)
LEGEND = (
    "events/s: applied payments, the median of the rounds; low, high: the slowest and the fastest "
    "round; ratio: to FastAPI + SQLAlchemy; app, db: CPU time of the server and of PostgreSQL per "
    "event; WAL B: bytes of WAL per event; others: the part of the machine that other processes had"
)
FRAME = f"""\
# Benchmarks

{BEGIN}
{END}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table: the median of the rounds, and how far they lie apart."""

    contender: str
    title: str
    connections: int
    figures: Figures
    slowest_per_s: float
    fastest_per_s: float
    ratio_to_peer: float | None

    def cells(self) -> list[str]:
        """The row as text, in the order of COLUMNS."""
        figures = self.figures
        return [
            str(self.connections),
            self.title,
            f"{figures.events_per_s:,.0f}",
            f"{self.slowest_per_s:,.0f}",
            f"{self.fastest_per_s:,.0f}",
            "" if self.ratio_to_peer is None else f"{self.ratio_to_peer:.1f}",
            f"{figures.p50_ms:,.1f}",
            f"{figures.p99_ms:,.1f}",
            f"{figures.server_cpu_us:,.0f}",
            f"{figures.postgres_cpu_us:,.0f}",
            f"{figures.wal_bytes:,.0f}",
            f"{figures.foreign_cpu_share:.0%}",
            str(figures.errors),
        ]


def summarise(plan: Plan, measurements: Sequence[Measurement]) -> list[Line]:
    """A line for each number of connections and contender that was measured."""
    lines: list[Line] = []
    for connections in plan.connections:
        own = [each for each in measurements if each.trial.connections == connections]
        lines += _lines_at(plan, connections, own)
    return lines


def _lines_at(plan: Plan, connections: int, own: list[Measurement]) -> Iterator[Line]:
    by_name = {
        contender.name: [each for each in own if each.trial.contender is contender]
        for contender in plan.contenders
    }
    peer = median_of(by_name[PEER]).events_per_s if by_name.get(PEER) else None
    for contender in plan.contenders:
        if repeated := by_name[contender.name]:
            figures = median_of(repeated)
            rates = [each.figures.events_per_s for each in repeated]
            ratio = figures.events_per_s / peer if peer else None
            yield Line(
                contender.name,
                contender.title,
                connections,
                figures,
                min(rates),
                max(rates),
                ratio,
            )


def terminal_table(lines: Sequence[Line]) -> Table:
    """The table for people who wait for it."""
    table = Table(caption=LEGEND)
    for column in COLUMNS:
        is_text = column == "contender"
        table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text)
    for above, line in zip([None, *lines], lines, strict=False):
        if above is not None and above.connections != line.connections:
            table.add_section()
        table.add_row(*line.cells(), style="bold" if line.contender == OURS else None)
    return table


def write_markdown(
    path: Path, lines: Sequence[Line], *, plan: Plan, machine: dict[str, str], command: str
) -> None:
    """Replace what lies between the markers; everything else in the file is kept."""
    text = path.read_text() if path.exists() else FRAME
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    results = "\n\n".join(_sections(lines, plan, machine, command))
    replacement = f"{BEGIN}\n\n{results}\n\n{END}"
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pattern.sub(lambda _: replacement, text, count=1))


def _sections(
    lines: Sequence[Line], plan: Plan, machine: dict[str, str], command: str
) -> Iterator[str]:
    yield f"`{command}`"
    yield "![Applied events per second and p99 by connections](benchmarks.svg)"
    yield _markdown_table(lines)
    yield "\n".join(_comparisons(lines))
    yield (
        f"Medians of {plan.rounds} rounds{_exceptions(plan)} of {plan.seconds:g} s after "
        f"{plan.warmup_s:g} s of "
        f"warm-up, the contenders taking turns, one running at a time, each time on a fresh copy "
        f"of a database in which {plan.users:,} users have a subscription. Every event is "
        "signed, unique and a payment of its own that extends a subscription; every answer 200 "
        f"was checked against the database. {LEGEND}. The load generator shares the cores and "
        f"used {_client_cpu(lines)} µs per event."
    )
    yield "\n".join(f"- {name}: {fact}" for name, fact in machine.items())


def _markdown_table(lines: Sequence[Line]) -> str:
    rules = ["---" if column == "contender" else "---:" for column in COLUMNS]
    rows = [COLUMNS, rules, *(line.cells() for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _comparisons(lines: Sequence[Line]) -> Iterator[str]:
    """How many times as many events Paidonce applies, beside each peer that was measured."""
    ours = {line.connections: line.figures.events_per_s for line in lines if line.contender == OURS}
    for name in (PEER, TUNED_PEER):
        own = [line for line in lines if line.contender == name and line.connections in ours]
        ratios = [
            f"{ours[line.connections] / line.figures.events_per_s:.1f} at {line.connections}"
            for line in own
        ]
        if own:
            yield f"- Paidonce to {own[0].title}: {', '.join(ratios)} connections."


def _exceptions(plan: Plan) -> str:
    """Whose figures are no medians."""
    titles = [contender.title for contender in plan.contenders if contender.once]
    return f" ({'; '.join(titles)}: one round)" if titles and plan.rounds > 1 else ""


def _client_cpu(lines: Sequence[Line]) -> str:
    used = [line.figures.client_cpu_us for line in lines if line.figures.client_cpu_us]
    return f"{min(used):.0f} to {max(used):.0f}"
