"""Checks of the database, on a read-only connection. It may be in any state."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from paidonce.bus import dead_letters, outbox
from paidonce.clock import CLOCK, MAX_SKEW_S
from paidonce.core.money import Money
from paidonce.db import pool
from paidonce.db.embedded import files
from paidonce.db.queries import Connection, load_queries
from paidonce.db.schema import current_revision, known_revisions, next_month, partition_name
from paidonce.doctor.checks import CheckResult, defect, ok, problem, refused, skipped, warning
from paidonce.errors import PaidonceError
from paidonce.events import store as events_store
from paidonce.maintenance.partitions import attached_partitions
from paidonce.payments import store as payments_store
from paidonce.settings import Settings

QUERIES: Final = load_queries(__file__)
SMALL_CLOCK_SKEW_S: Final = 1.0
LONG_OVERDUE_S: Final = 600.0
LONG_UNPUBLISHED_S: Final = 60.0
NO_SCHEMA: Final = "there is no schema yet"


async def examine(settings: Settings) -> list[CheckResult]:
    """Run every check of the database. Raises nothing."""
    try:
        url = _running_url(settings)
        if url is None:
            why = "the embedded database is not running; `paidonce serve` starts it"
            return skipped(CHECKS, why)
        async with pool.connect_read_only(url) as connection:
            return await _check_all(connection, settings)
    except (PaidonceError, OSError) as error:
        first, *others = CHECKS
        wrong = refused(error, first, "check database.url and database.data_dir")
        return [wrong, *skipped(others, "the database does not answer")]


def _running_url(settings: Settings) -> str | None:
    if not settings.database.is_embedded:
        return settings.database.url
    placement = files.find(settings.database.data_dir)
    if placement is None or files.running_postmaster(placement, None) is None:
        return None
    return placement.dsn


async def _check_all(connection: Connection, settings: Settings) -> list[CheckResult]:
    done: list[CheckResult] = []
    for name, check in CHECKS.items():
        try:
            result = await check(connection, settings)
        except Exception as error:
            result = defect(error)
        done.append(replace(result, name=name))
        is_unfit = result.state == "problem" or NO_SCHEMA in result.found
        if check is _migrations and is_unfit:
            return done + skipped(list(CHECKS)[len(done) :], result.found)
    return done


async def _server(connection: Connection, settings: Settings) -> CheckResult:
    version, database = connection.get_server_version().major, settings.database
    place = "embedded" if database.is_embedded else pool.redact_url(database.url)
    found = f"PostgreSQL {version}, {place}"
    if version < pool.OLDEST_VERSION:
        return problem(found, f"update it: {pool.OLDEST_VERSION} or newer is needed")
    return ok(found)


async def _clock(connection: Connection, settings: Settings) -> CheckResult:
    reading = await pool.read_clock(connection)
    if reading is None:
        return warning("the database was too slow to compare the clocks", "try again")
    return clock_result(reading.skew_s)


def clock_result(skew_s: float) -> CheckResult:
    """The result for a difference between the clocks."""
    found = f"the clock of the database differs by {skew_s:+.1f} s from this machine"
    if abs(skew_s) > MAX_SKEW_S:
        return problem(found, "set both by NTP; `serve` refuses to start")
    return warning(found, "set both by NTP") if abs(skew_s) > SMALL_CLOCK_SKEW_S else ok(found)


async def _rights(connection: Connection, settings: Settings) -> CheckResult:
    found = await QUERIES["rights"].row(connection)
    assert found is not None
    role, schema = found["role"], found["schema"]
    if schema is None or not found["may_create"]:
        return problem(
            f"{role} may not create tables in schema {schema or '(none on the search_path)'}",
            f"as a superuser: GRANT CREATE, USAGE ON SCHEMA {schema or 'public'} TO {role}",
        )
    if not (found["is_owner"] and found["may_insert"]):
        return problem(
            f"{role} does not own the tables, so it cannot add partitions",
            f"connect as their owner, or ALTER TABLE … OWNER TO {role}",
        )
    return ok(f"{role} may create and write in schema {schema}")


async def _migrations(connection: Connection, settings: Settings) -> CheckResult:
    current, known = await current_revision(connection), known_revisions()
    remedy = "run `paidonce migrate`, or `paidonce serve`, which migrates at its start"
    if current is None:
        return warning(NO_SCHEMA, remedy)
    if current not in known:
        found = f"the schema is at {current}, which is newer than this program"
        return problem(found, "update this program")
    if current != known[0]:
        return warning(f"the schema is at {current}, this program's is {known[0]}", remedy)
    return ok(f"up to date, at {current}")


async def _partitions(connection: Connection, settings: Settings) -> CheckResult:
    month = CLOCK.now().replace(day=1)
    this, following = partition_name(month), partition_name(next_month(month))
    existing = await attached_partitions(connection)
    missing = [name for name in (this, following) if name not in existing]
    if not missing:
        return ok("this month and the next exist")
    found = f"missing: {', '.join(missing)}; without one no event of its month can be stored"
    remedy = "start `paidonce serve`, or `paidonce migrate`; the log says why it failed"
    return problem(found, remedy) if this in missing else warning(found, remedy)


async def _registered_sources(connection: Connection, settings: Settings) -> CheckResult:
    rows = await QUERIES["sources"].rows(connection)
    known = {row["name"]: row["provider"] for row in rows}
    changed = [
        f"{name} has events of provider {known[name]!r}, but is configured as {source.provider!r}"
        for name, source in settings.sources.items()
        if known.get(name, source.provider) != source.provider
    ]
    if changed:
        remedy = "use another name for the new one: a source keeps its provider"
        return problem("; ".join(changed), remedy)
    new = sorted(settings.sources.keys() - known.keys())
    gone = sorted(known.keys() - settings.sources.keys()) if settings.sources else []
    notes = [f"{len(known)} in the database"]
    notes += [f"new at the next start: {', '.join(new)}"] if new else []
    notes += [f"no longer configured: {', '.join(gone)}"] if gone else []
    return ok("; ".join(notes))


async def _waiting(connection: Connection, settings: Settings) -> CheckResult:
    overdue_s = await QUERIES["overdue"].value(connection) or 0.0
    backlog = {row["status"]: row["number"] for row in await events_store.backlog(connection)}
    dead = backlog.pop("DEAD_LETTER", 0)
    late = f"the oldest is overdue by {overdue_s / 60:.0f} minutes"
    return _backlog_result(
        f"{sum(backlog.values())} events are pending, {dead} are dead letters",
        late if overdue_s > LONG_OVERDUE_S else "",
        "check that `paidonce serve` or `paidonce work` runs, and read its log",
        "list them: GET /api/v1/events?status=DEAD_LETTER" if dead else "",
    )


async def _money(connection: Connection, settings: Settings) -> CheckResult:
    rows = await payments_store.unapplied_money(connection)
    if not rows:
        return ok("all received money is applied")
    sums = [
        f"{Money(row['sum_minor'], row['currency']) if row['currency'] else 'an unknown sum'}"
        f" ({row['number']}, {row['reason'] or 'new'})"
        for row in rows
    ]
    found = f"received and not applied: {', '.join(sums)}"
    return ok(found, "list them: GET /api/v1/payments?applied=false")


async def _messages(connection: Connection, settings: Settings) -> CheckResult:
    unpublished, oldest_s = await outbox.backlog(connection)
    dead = sum((await dead_letters.count_by_group(connection)).values())
    late = f"the oldest is waiting for {oldest_s / 60:.0f} minutes"
    return _backlog_result(
        f"{unpublished} messages are not published, {dead} are dead letters",
        late if oldest_s > LONG_UNPUBLISHED_S else "",
        "check that `paidonce serve` or `paidonce relay` runs, and read its log",
        "list them: `paidonce bus dead-letters list`" if dead else "",
    )


def _backlog_result(found: str, late: str, late_remedy: str, dead_remedy: str) -> CheckResult:
    """A warning if something is late or dead."""
    remedies = [one for one in (late and late_remedy, dead_remedy) if one]
    found = f"{found}; {late}" if late else found
    return warning(found, "; ".join(remedies)) if remedies else ok(found)


CHECKS: Final[dict[str, Callable[[Connection, Settings], Awaitable[CheckResult]]]] = {
    "database": _server,
    "clock": _clock,
    "rights": _rights,
    "migrations": _migrations,
    "partitions": _partitions,
    "known sources": _registered_sources,
    "waiting": _waiting,
    "money": _money,
    "messages": _messages,
}
