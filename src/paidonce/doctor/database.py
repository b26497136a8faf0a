"""Checks of the database, on a connection that can change nothing."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

from paidonce.doctor.findings import Finding, State, asked, one_line, skipped
from paidonce.domain.money import Money
from paidonce.errors import PaidonceError
from paidonce.settings import Settings
from paidonce.store import checkup, dead_messages, embedded_files, listings, outbox
from paidonce.store.db import MAX_CLOCK_SKEW_S, OLDEST_VERSION, looking_at, place_of
from paidonce.store.queries import Connection
from paidonce.store.schema import revisions

CHECKS: Final = (
    "database", "clock", "rights", "migrations", "partitions", "known sources", "waiting", "money",
    "messages",
)  # fmt: skip
SMALL_CLOCK_SKEW_S: Final = 1.0
LONG_OVERDUE_S: Final = 600.0
LONG_UNPUBLISHED_S: Final = 60.0
NO_SCHEMA: Final = "there is no schema yet"


async def examine_database(settings: Settings) -> list[Finding]:
    """Make every check of the database, as far as it answers. Raises nothing."""
    try:
        url = _running_url(settings)
        if url is None:
            found = "the embedded database does not run; `paidonce serve` starts it"
            return skipped(CHECKS, found)
        async with looking_at(url) as connection:
            return [finding async for finding in _look(connection, settings, url)]
    except (PaidonceError, OSError) as error:
        remedy = "see [database] url and data_dir"
        wrong = Finding("database", State.PROBLEM, one_line(error), remedy)
        return [wrong, *skipped(CHECKS[1:], "the database cannot be asked")]


def _running_url(settings: Settings) -> str | None:
    if not settings.database.is_embedded:
        return settings.database.url
    placement = embedded_files.find(settings.database.data_dir)
    if placement is None or embedded_files.running_postmaster(placement, None) is None:
        return None
    return placement.dsn


async def _look(connection: Connection, settings: Settings, url: str) -> AsyncIterator[Finding]:
    version = checkup.version(connection)
    found = (
        f"PostgreSQL {version}, {'embedded' if settings.database.is_embedded else place_of(url)}"
    )
    if version < OLDEST_VERSION:
        remedy = f"update it: {OLDEST_VERSION} or newer is needed"
        yield Finding("database", State.PROBLEM, found, remedy)
    else:
        yield Finding("database", State.OK, found)
    yield await asked("clock", lambda: _clock(connection))
    yield await asked("rights", lambda: _rights(connection))
    schema = await asked("migrations", lambda: _migrations(connection))
    yield schema
    if schema.state is State.PROBLEM or NO_SCHEMA in schema.found:
        for finding in skipped(CHECKS[4:], schema.found):
            yield finding
        return
    yield await asked("partitions", lambda: _partitions(connection))
    yield await asked("known sources", lambda: _known_sources(connection, settings))
    yield await asked("waiting", lambda: _waiting(connection))
    yield await asked("money", lambda: _money(connection))
    yield await asked("messages", lambda: _messages(connection))


async def _clock(connection: Connection) -> Finding:
    return clock_finding(await checkup.clock_skew_s(connection))


def clock_finding(skew_s: float) -> Finding:
    """What it means that the database's clock is so much ahead of ours."""
    found = f"the database's clock is {skew_s:+.1f} s off this machine's"
    if abs(skew_s) > MAX_CLOCK_SKEW_S:
        return Finding("clock", State.PROBLEM, found, "set both by NTP; `serve` refuses to start")
    if abs(skew_s) > SMALL_CLOCK_SKEW_S:
        return Finding("clock", State.WARNING, found, "set both by NTP")
    return Finding("clock", State.OK, found)


async def _rights(connection: Connection) -> Finding:
    found = await checkup.rights(connection)
    role, schema = found["role"], found["schema"]
    if schema is None or not found["may_create"]:
        told = f"{role} may not create tables in schema {schema or '(none on the search_path)'}"
        remedy = f"as a superuser: GRANT CREATE, USAGE ON SCHEMA {schema or 'public'} TO {role}"
        return Finding("rights", State.PROBLEM, told, remedy)
    if not (found["is_owner"] and found["may_insert"]):
        told = f"{role} does not own the tables, so that no months can be added"
        remedy = f"connect as their owner, or ALTER TABLE … OWNER TO {role}"
        return Finding("rights", State.PROBLEM, told, remedy)
    return Finding("rights", State.OK, f"{role} may create and write in schema {schema}")


async def _migrations(connection: Connection) -> Finding:
    current, known = await revisions(connection)
    remedy = "run `paidonce migrate`, or `paidonce serve`, which does it at its start"
    if current is None:
        return Finding("migrations", State.WARNING, NO_SCHEMA, remedy)
    if current not in known:
        found = f"the schema is at {current}, which this program does not know: it is newer"
        return Finding("migrations", State.PROBLEM, found, "update this program")
    if current != known[0]:
        found = f"the schema is at {current}, this program's is {known[0]}"
        return Finding("migrations", State.WARNING, found, remedy)
    return Finding("migrations", State.OK, f"up to date, at {current}")


async def _partitions(connection: Connection) -> Finding:
    missing = await checkup.missing_months(connection, datetime.now(UTC))
    if not missing:
        return Finding("partitions", State.OK, "this month and the next are there")
    remedy = "start `paidonce serve`, or `paidonce migrate`; the log tells why it failed"
    found = f"missing: {', '.join(missing)}; without one no event of its month can be stored"
    is_now = len(missing) == 2 or missing[0].endswith(f"{datetime.now(UTC):%Y_%m}")
    return Finding("partitions", State.PROBLEM if is_now else State.WARNING, found, remedy)


async def _known_sources(connection: Connection, settings: Settings) -> Finding:
    known = await checkup.known_sources(connection)
    changed = [
        f"{name} has events of {known[name]!r}, is configured as {source.provider!r}"
        for name, source in settings.sources.items()
        if known.get(name, source.provider) != source.provider
    ]
    if changed:
        remedy = "give the new one another name: a source keeps its provider"
        return Finding("known sources", State.PROBLEM, "; ".join(changed), remedy)
    new = sorted(settings.sources.keys() - known.keys())
    gone = sorted(known.keys() - settings.sources.keys()) if settings.sources else []
    notes = [f"{len(known)} known"]
    notes += [f"new at the next start: {', '.join(new)}"] if new else []
    notes += [f"not configured any more: {', '.join(gone)}"] if gone else []
    return Finding("known sources", State.OK, "; ".join(notes))


async def _waiting(connection: Connection) -> Finding:
    overdue_s = await checkup.overdue_s(connection)
    backlog = {row["status"]: row["number"] for row in await listings.backlog(connection)}
    dead = backlog.pop("DEAD_LETTER", 0)
    found, remedies = [f"{sum(backlog.values())} events wait, {dead} are dead letters"], []
    if overdue_s > LONG_OVERDUE_S:
        found.append(f"the oldest has been due for {overdue_s / 60:.0f} minutes")
        remedies.append("see that `paidonce serve` or `paidonce work` runs, and what its log says")
    if dead:
        remedies.append("see GET /api/v1/events?status=DEAD_LETTER")
    state = State.WARNING if remedies else State.OK
    return Finding("waiting", state, "; ".join(found), "; ".join(remedies))


async def _money(connection: Connection) -> Finding:
    rows = await listings.unapplied_money(connection)
    if not rows:
        return Finding("money", State.OK, "all that was received is applied")
    sums = [
        f"{Money(row['sum_minor'], row['currency'])} ({row['number']}, {row['reason'] or 'new'})"
        for row in rows
    ]
    found = f"received and not applied: {', '.join(sums)}"
    return Finding("money", State.OK, found, "see GET /api/v1/payments?applied=false")


async def _messages(connection: Connection) -> Finding:
    backlog = await outbox.backlog(connection)
    dead = sum((await dead_messages.numbers_open(connection)).values())
    found, remedies = [f"{backlog.number} are not published, {dead} are dead letters"], []
    if backlog.oldest_s > LONG_UNPUBLISHED_S:
        found.append(f"the oldest waits for {backlog.oldest_s / 60:.0f} minutes")
        remedies.append("see that `paidonce serve` or `paidonce relay` runs, and what its log says")
    if dead:
        remedies.append("see `paidonce bus dead-letters list`")
    state = State.WARNING if remedies else State.OK
    return Finding("messages", state, "; ".join(found), "; ".join(remedies))
