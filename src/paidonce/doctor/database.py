"""Checks of the database, on a read-only connection."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

from paidonce.bus import dead_letters, outbox
from paidonce.core.money import Money
from paidonce.db.embedded import files
from paidonce.db.pool import MAX_CLOCK_SKEW_S, OLDEST_VERSION, connect_read_only, redact_url
from paidonce.db.queries import Connection
from paidonce.db.schema import revisions
from paidonce.doctor import store
from paidonce.doctor.checks import CheckResult, CheckState, one_line, run_database_check, skipped
from paidonce.errors import PaidonceError
from paidonce.events import store as events_store
from paidonce.payments import store as payments_store
from paidonce.settings import Settings

CHECKS: Final = (
    "database", "clock", "rights", "migrations", "partitions", "known sources", "waiting", "money",
    "messages",
)  # fmt: skip
SMALL_CLOCK_SKEW_S: Final = 1.0
LONG_OVERDUE_S: Final = 600.0
LONG_UNPUBLISHED_S: Final = 60.0
NO_SCHEMA: Final = "there is no schema yet"


async def examine_database(settings: Settings) -> list[CheckResult]:
    """Run every check of the database. Raises nothing."""
    try:
        url = _running_url(settings)
        if url is None:
            found = "the embedded database is not running; `paidonce serve` starts it"
            return skipped(CHECKS, found)
        async with connect_read_only(url) as connection:
            return [finding async for finding in _look(connection, settings, url)]
    except (PaidonceError, OSError) as error:
        remedy = "check database.url and database.data_dir"
        wrong = CheckResult("database", CheckState.PROBLEM, one_line(error), remedy)
        return [wrong, *skipped(CHECKS[1:], "the database does not answer")]


def _running_url(settings: Settings) -> str | None:
    if not settings.database.is_embedded:
        return settings.database.url
    placement = files.find(settings.database.data_dir)
    if placement is None or files.running_postmaster(placement, None) is None:
        return None
    return placement.dsn


async def _look(connection: Connection, settings: Settings, url: str) -> AsyncIterator[CheckResult]:
    version = store.version(connection)
    found = (
        f"PostgreSQL {version}, {'embedded' if settings.database.is_embedded else redact_url(url)}"
    )
    if version < OLDEST_VERSION:
        remedy = f"update it: {OLDEST_VERSION} or newer is needed"
        yield CheckResult("database", CheckState.PROBLEM, found, remedy)
    else:
        yield CheckResult("database", CheckState.OK, found)
    yield await run_database_check("clock", lambda: _clock(connection))
    yield await run_database_check("rights", lambda: _rights(connection))
    schema = await run_database_check("migrations", lambda: _migrations(connection))
    yield schema
    if schema.state is CheckState.PROBLEM or NO_SCHEMA in schema.found:
        for finding in skipped(CHECKS[4:], schema.found):
            yield finding
        return
    yield await run_database_check("partitions", lambda: _partitions(connection))
    yield await run_database_check(
        "known sources", lambda: _registered_sources(connection, settings)
    )
    yield await run_database_check("waiting", lambda: _waiting(connection))
    yield await run_database_check("money", lambda: _money(connection))
    yield await run_database_check("messages", lambda: _messages(connection))


async def _clock(connection: Connection) -> CheckResult:
    return clock_result(await store.clock_skew_s(connection))


def clock_result(skew_s: float) -> CheckResult:
    """The result for a difference between the clocks."""
    found = f"the clock of the database differs by {skew_s:+.1f} s from this machine"
    if abs(skew_s) > MAX_CLOCK_SKEW_S:
        return CheckResult(
            "clock", CheckState.PROBLEM, found, "set both by NTP; `serve` refuses to start"
        )
    if abs(skew_s) > SMALL_CLOCK_SKEW_S:
        return CheckResult("clock", CheckState.WARNING, found, "set both by NTP")
    return CheckResult("clock", CheckState.OK, found)


async def _rights(connection: Connection) -> CheckResult:
    found = await store.rights(connection)
    role, schema = found["role"], found["schema"]
    if schema is None or not found["may_create"]:
        found_text = (
            f"{role} may not create tables in schema {schema or '(none on the search_path)'}"
        )
        remedy = f"as a superuser: GRANT CREATE, USAGE ON SCHEMA {schema or 'public'} TO {role}"
        return CheckResult("rights", CheckState.PROBLEM, found_text, remedy)
    if not (found["is_owner"] and found["may_insert"]):
        found_text = f"{role} does not own the tables, so it cannot add partitions"
        remedy = f"connect as their owner, or ALTER TABLE … OWNER TO {role}"
        return CheckResult("rights", CheckState.PROBLEM, found_text, remedy)
    return CheckResult("rights", CheckState.OK, f"{role} may create and write in schema {schema}")


async def _migrations(connection: Connection) -> CheckResult:
    current, known = await revisions(connection)
    remedy = "run `paidonce migrate`, or `paidonce serve`, which migrates at its start"
    if current is None:
        return CheckResult("migrations", CheckState.WARNING, NO_SCHEMA, remedy)
    if current not in known:
        found = f"the schema is at {current}, which is newer than this program"
        return CheckResult("migrations", CheckState.PROBLEM, found, "update this program")
    if current != known[0]:
        found = f"the schema is at {current}, this program's is {known[0]}"
        return CheckResult("migrations", CheckState.WARNING, found, remedy)
    return CheckResult("migrations", CheckState.OK, f"up to date, at {current}")


async def _partitions(connection: Connection) -> CheckResult:
    missing = await store.missing_months(connection, datetime.now(UTC))
    if not missing:
        return CheckResult("partitions", CheckState.OK, "this month and the next exist")
    remedy = "start `paidonce serve`, or `paidonce migrate`; the log says why it failed"
    found = f"missing: {', '.join(missing)}; without one no event of its month can be stored"
    is_now = len(missing) == 2 or missing[0].endswith(f"{datetime.now(UTC):%Y_%m}")
    return CheckResult(
        "partitions", CheckState.PROBLEM if is_now else CheckState.WARNING, found, remedy
    )


async def _registered_sources(connection: Connection, settings: Settings) -> CheckResult:
    known = await store.registered_sources(connection)
    changed = [
        f"{name} has events of provider {known[name]!r}, but is configured as {source.provider!r}"
        for name, source in settings.sources.items()
        if known.get(name, source.provider) != source.provider
    ]
    if changed:
        remedy = "use another name for the new one: a source keeps its provider"
        return CheckResult("known sources", CheckState.PROBLEM, "; ".join(changed), remedy)
    new = sorted(settings.sources.keys() - known.keys())
    gone = sorted(known.keys() - settings.sources.keys()) if settings.sources else []
    notes = [f"{len(known)} in the database"]
    notes += [f"new at the next start: {', '.join(new)}"] if new else []
    notes += [f"no longer configured: {', '.join(gone)}"] if gone else []
    return CheckResult("known sources", CheckState.OK, "; ".join(notes))


async def _waiting(connection: Connection) -> CheckResult:
    overdue_s = await store.overdue_s(connection)
    backlog = {row["status"]: row["number"] for row in await events_store.backlog(connection)}
    dead = backlog.pop("DEAD_LETTER", 0)
    found, remedies = [f"{sum(backlog.values())} events are pending, {dead} are dead letters"], []
    if overdue_s > LONG_OVERDUE_S:
        found.append(f"the oldest is overdue by {overdue_s / 60:.0f} minutes")
        remedies.append("check that `paidonce serve` or `paidonce work` runs, and read its log")
    if dead:
        remedies.append("list them: GET /api/v1/events?status=DEAD_LETTER")
    state = CheckState.WARNING if remedies else CheckState.OK
    return CheckResult("waiting", state, "; ".join(found), "; ".join(remedies))


async def _money(connection: Connection) -> CheckResult:
    rows = await payments_store.unapplied_money(connection)
    if not rows:
        return CheckResult("money", CheckState.OK, "all received money is applied")
    sums = [
        f"{Money(row['sum_minor'], row['currency'])} ({row['number']}, {row['reason'] or 'new'})"
        for row in rows
    ]
    found = f"received and not applied: {', '.join(sums)}"
    return CheckResult(
        "money", CheckState.OK, found, "list them: GET /api/v1/payments?applied=false"
    )


async def _messages(connection: Connection) -> CheckResult:
    backlog = await outbox.backlog(connection)
    dead = sum((await dead_letters.count_by_group(connection)).values())
    found, remedies = [f"{backlog.number} messages are not published, {dead} are dead letters"], []
    if backlog.oldest_s > LONG_UNPUBLISHED_S:
        found.append(f"the oldest is waiting for {backlog.oldest_s / 60:.0f} minutes")
        remedies.append("check that `paidonce serve` or `paidonce relay` runs, and read its log")
    if dead:
        remedies.append("list them: `paidonce bus dead-letters list`")
    state = CheckState.WARNING if remedies else CheckState.OK
    return CheckResult("messages", state, "; ".join(found), "; ".join(remedies))
