"""`send`: test webhooks."""

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table

from paidonce import demo
from paidonce.cli.for_programs import json_text
from paidonce.cli.terminal import Config, Json, chosen_settings, run, shown, told
from paidonce.errors import ConfigurationError, PaidonceError
from paidonce.providers import configured_providers
from paidonce.providers.contract import TEST_HEADER, Delivery, Provider, Sample
from paidonce.providers.samples import WORDS, new_sample, omitted

if TYPE_CHECKING:
    from paidonce.sender import Answer

MAX_SHOWN: Final = 20


def add_to(app: typer.Typer) -> None:
    """Make it a command of the program."""
    app.command()(send)


def send(
    config: Config = None,
    source: Annotated[str | None, typer.Option(help="The source to send to.")] = None,
    payment_id: Annotated[
        str | None, typer.Option(help="The gateway's payment id; else a new one.")
    ] = None,
    order: Annotated[str | None, typer.Option(help="The reference of the order it pays.")] = None,
    event_id: Annotated[
        str | None, typer.Option(help="The gateway's event id; else made from payment and status.")
    ] = None,
    amount: Annotated[str, typer.Option(help="In major units.")] = demo.PRICE,
    currency: Annotated[str, typer.Option(help="ISO 4217.")] = demo.CURRENCY,
    email: Annotated[str | None, typer.Option(help="Who paid.")] = None,
    plan: Annotated[str | None, typer.Option(help="The plan that was paid for.")] = None,
    status: Annotated[
        str, typer.Option(help=f"{', '.join(WORDS)}, or the gateway's own word.")
    ] = "paid",
    times: Annotated[int, typer.Option(min=1, max=100_000, help="How often to send it.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, max=1_000, help="How many at once.")] = 1,
    url: Annotated[str | None, typer.Option(help="Where the service is.")] = None,
    json: Json = False,
) -> None:
    """Send a correctly signed test webhook, once or many times, and show each answer."""
    from paidonce import sender

    settings, _ = chosen_settings(config)
    if settings.environment == "production":
        raise ConfigurationError("environment = 'production': test webhooks are refused there")
    name = source or next(iter(settings.sources))
    provider = configured_providers(settings).get(name)
    if provider is None:
        known = ", ".join(settings.sources)
        raise ConfigurationError(f"--source {name}: there is no such source; known are {known}")
    if provider.composes_for_itself:
        raise ConfigurationError(
            f"--source {name}: only the service itself can sign for {provider.name}; "
            f"POST /webhooks/{name}/test there"
        )
    sample = new_sample(
        amount=amount,
        currency=currency,
        status=status,
        payment_id=payment_id,
        event_id=event_id,
        order=order,
        email=email,
        plan_id=plan,
    )
    headers, body = provider.compose(sample)
    _tell_what_is_omitted(provider, sample, Delivery(headers, body, datetime.now(UTC)))
    headers[TEST_HEADER] = "1"
    base = url or f"http://{settings.server.host}:{settings.server.port}"
    answers = run(sender.send(f"{base}/webhooks/{name}", headers, body, times, concurrency))
    _show_answers(answers, base, as_json=json)


def _tell_what_is_omitted(provider: Provider, sample: Sample, made: Delivery) -> None:
    with suppress(PaidonceError):  # what cannot be read may be sent all the same
        for name in omitted(sample, provider.translate(made)):
            told.print(f"Webhooks of {provider.name} have no place for {name}: it is left out.")


def _show_answers(answers: "list[Answer]", base: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(answers))
    elif len(answers) > MAX_SHOWN:
        shown.print(f"{len(answers)} answers:")
        for words, number in _tally(answers).items():
            shown.print(f"  {number} × {words}")
    else:
        table = Table("#", "HTTP", "status", "event", "ms")
        for number, one in enumerate(answers, 1):
            event = one.event_id or one.detail
            table.add_row(str(number), str(one.http), one.status, event, f"{one.duration_ms:.1f}")
        shown.print(table)
    event_id = next((one.event_id for one in answers if one.event_id), None)
    if event_id and not as_json:
        told.print(
            f"Its trail: curl -H 'Authorization: Bearer po_…' {base}/api/v1/events/{event_id}"
        )
    if any(one.http != 200 for one in answers):
        raise typer.Exit(1)


def _tally(answers: "list[Answer]") -> dict[str, int]:
    """How often each answer came."""
    return dict(Counter(f"{one.http} {one.status}" for one in answers).most_common())
