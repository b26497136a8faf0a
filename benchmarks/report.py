"""The results as a table on the terminal and in docs/benchmarks.md."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.load import Flood, OrdersPaid
from benchmarks.markdown import markdown_list, markdown_table
from benchmarks.plot import Panel, Series, draw_panels
from benchmarks.portone_orders import ORDERS_PER_S
from benchmarks.rounds import Figures, Measurement, Plan, median_of
from benchmarks.slow_gateway import DELAY_S
from benchmarks.terminal import terminal_table

PICTURE = "benchmarks.svg"
PEER, TUNED_PEER, OURS = "peer", "tuned_peer", "paidonce"
COLOURS = {
    PEER: "#c4c4c4",
    TUNED_PEER: "#8a8a8a",
    OURS: "#0b7a75",
    "paidonce_2": "#064e4b",
    "queued": "#62b6b0",
}
COLUMNS = (
    "conns",
    "contender",
    "acked/s",
    "applied/s",
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
TEXTS = ("contender",)
LEGEND = (
    "acked/s: events answered 200 per second; applied/s: payments applied per second, counted "
    "until the last one was applied, median of the rounds; low, high: the slowest and the fastest "
    "round; ratio: applied events relative to FastAPI + SQLAlchemy; p50, p99: time from request to "
    "answer; app, db: CPU time per event of the server and of PostgreSQL; WAL B: bytes of WAL per "
    "event; others: the share of the machine that other processes used"
)
ORDER_COLUMNS = ("conns", "orders", "PAID", "p50 ms", "p99 ms", "load ×", "load p99 ×")
ORDER_LEGEND = (
    f"Orders during the load: {ORDERS_PER_S} a second are paid at a gateway whose webhooks need a "
    f"lookup, which takes {DELAY_S * 1000:.0f} ms. orders: the number sent, including those before "
    "the measured time; PAID: how many of these were paid in the end; p50, p99: time from webhook "
    "to the processing that made the order PAID, before its commit, of those sent in the measured "
    "time; ×: applied events of the load, and their p99, relative to Paidonce without such orders"
)
FLOOD_COLUMNS = ("conns", "forged/s", "401", "429", "403", "other", "load ×", "load p99 ×")
FLOOD_LEGEND = (
    "Forgeries during the load: one client, from another address, sends deliveries with a wrong "
    "signature as fast as it can, on eight connections, with the default limits. forged/s: "
    "forgeries sent per second; 401, 429, 403: refused for the signature, rate-limited, banned; ×: "
    "applied events of the honest load, and their p99, relative to Paidonce without the flood. The "
    "forger shares the cores with everything else"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table: the median of the rounds, and their range."""

    contender: str
    title: str
    connections: int
    figures: Figures
    slowest_per_s: float
    fastest_per_s: float
    ratio_to_peer: float | None
    orders: OrdersPaid | None
    flood: Flood | None

    def cells(self) -> list[str]:
        """The row as text, in the order of COLUMNS."""
        figures = self.figures
        return [
            str(self.connections),
            self.title,
            f"{figures.acked_per_s:,.0f}",
            f"{figures.applied_per_s:,.0f}",
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
    peer = median_of(by_name[PEER]).applied_per_s if by_name.get(PEER) else None
    for contender in plan.contenders:
        if repeated := by_name[contender.name]:
            figures = median_of(repeated)
            rates = [each.figures.applied_per_s for each in repeated]
            ratio = figures.applied_per_s / peer if peer else None
            yield Line(
                contender.name,
                contender.title,
                connections,
                figures,
                min(rates),
                max(rates),
                ratio,
                repeated[0].orders,  # such contenders are measured once
                repeated[0].flood,
            )


def results_table(lines: Sequence[Line]) -> Table:
    """The table for the terminal."""
    table = terminal_table(COLUMNS, texts=TEXTS, caption=LEGEND)
    for above, line in zip([None, *lines], lines, strict=False):
        if above is not None and above.connections != line.connections:
            table.add_section()
        table.add_row(*line.cells(), style="bold" if line.contender == OURS else None)
    return table


def orders_table(lines: Sequence[Line]) -> Table:
    """The orders that were paid during the load; no rows if there were none."""
    table = terminal_table(ORDER_COLUMNS, texts=(), caption=ORDER_LEGEND)
    for cells in _order_rows(lines):
        table.add_row(*cells)
    return table


def flood_table(lines: Sequence[Line]) -> Table:
    """The forged deliveries during the load; no rows if there were none."""
    table = terminal_table(FLOOD_COLUMNS, texts=(), caption=FLOOD_LEGEND)
    for cells in _flood_rows(lines):
        table.add_row(*cells)
    return table


def results_parts(
    lines: Sequence[Line], *, plan: Plan, machine: dict[str, str], command: str
) -> Iterator[str]:
    """The parts of the section in docs/benchmarks.md."""
    yield f"`{command}`"
    yield f"![Applied events per second and p99 by connections]({PICTURE})"
    yield markdown_table(COLUMNS, [line.cells() for line in lines], texts=TEXTS)
    yield "\n".join(_comparisons(lines))
    yield (
        f"Medians of {plan.rounds} rounds{_exceptions(plan)} of {plan.seconds:g} s after "
        f"{plan.warmup_s:g} s of "
        f"warm-up. The contenders alternate; one runs at a time, each time on a fresh copy of a "
        f"database in which {plan.users:,} users have a subscription. Every event is signed, "
        "unique, and a separate payment that extends a subscription. Every 200 answer was checked "
        f"against the database. {LEGEND}. The load generator shares the cores and used "
        f"{_client_cpu(lines)} µs per event."
    )
    if orders := list(_order_rows(lines)):
        yield markdown_table(ORDER_COLUMNS, orders, texts=())
        yield f"{ORDER_LEGEND}."
    if floods := list(_flood_rows(lines)):
        yield markdown_table(FLOOD_COLUMNS, floods, texts=())
        yield f"{FLOOD_LEGEND}."
    yield markdown_list(machine)


def draw_results(path: Path, lines: Sequence[Line]) -> None:
    """Write the plot of the contenders with HTTP as SVG."""
    connections = list(dict.fromkeys(line.connections for line in lines))
    groups = [f"{number} connections" for number in connections]
    rates = _series(lines, lambda line: line.figures.applied_per_s)
    delays = _series(lines, lambda line: line.figures.p99_ms)
    panels = [
        Panel("Applied events per second", groups, rates),
        Panel("p99 in ms, logarithmic: lower is better", groups, delays, is_logarithmic=True),
    ]
    draw_panels(path, panels)


def _series(lines: Sequence[Line], value: Callable[[Line], float]) -> list[Series]:
    by_name = {name: [line for line in lines if line.contender == name] for name in COLOURS}
    return [
        Series(own[0].title, COLOURS[name], [value(line) for line in own])
        for name, own in by_name.items()
        if own
    ]


def _comparisons(lines: Sequence[Line]) -> Iterator[str]:
    """How many times as many events Paidonce applies as each peer."""
    ours = {
        line.connections: line.figures.applied_per_s for line in lines if line.contender == OURS
    }
    for name in (PEER, TUNED_PEER):
        own = [line for line in lines if line.contender == name and line.connections in ours]
        ratios = [
            f"{ours[line.connections] / line.figures.applied_per_s:.1f} at {line.connections}"
            for line in own
        ]
        if own:
            yield f"- Paidonce to {own[0].title}: {', '.join(ratios)} connections."


def _order_rows(lines: Sequence[Line]) -> Iterator[list[str]]:
    """The rows of contenders with orders, in the order of ORDER_COLUMNS."""
    for line in lines:
        if line.orders is not None:
            yield [
                str(line.connections),
                f"{line.orders.sent:,}",
                f"{line.orders.paid:,}",
                f"{line.orders.p50_ms:,.0f}",
                f"{line.orders.p99_ms:,.0f}",
                *_beside_ours(lines, line),
            ]


def _flood_rows(lines: Sequence[Line]) -> Iterator[list[str]]:
    """The rows of contenders that were flooded, in the order of FLOOD_COLUMNS."""
    for line in lines:
        if line.flood is not None:
            answers = line.flood.answers
            named = [answers.get(code, 0) for code in FLOOD_COLUMNS[2:5]]
            yield [
                str(line.connections),
                f"{line.flood.sent / line.flood.seconds:,.0f}",
                *(f"{number:,}" for number in named),
                f"{line.flood.sent - sum(named):,}",
                *_beside_ours(lines, line),
            ]


def _beside_ours(lines: Sequence[Line], line: Line) -> list[str]:
    """Applied events and p99 of a line relative to Paidonce's at the same number of connections."""
    for one in lines:
        if one.contender == OURS and one.connections == line.connections:
            alone = one.figures
            return [
                f"{line.figures.applied_per_s / alone.applied_per_s:.2f}",
                f"{line.figures.p99_ms / alone.p99_ms:.2f}",
            ]
    return ["", ""]


def _exceptions(plan: Plan) -> str:
    """The contenders that were measured only once."""
    titles = [contender.title for contender in plan.contenders if contender.once]
    return f" ({'; '.join(titles)}: one round)" if titles and plan.rounds > 1 else ""


def _client_cpu(lines: Sequence[Line]) -> str:
    used = [line.figures.client_cpu_us for line in lines if line.figures.client_cpu_us]
    return f"{min(used):.0f} to {max(used):.0f}"
