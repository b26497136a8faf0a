"""`paidonce send`: sends test webhooks."""

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from paidonce.clock import CLOCK
from paidonce.errors import ConfigurationError, PaidonceError, did_you_mean
from paidonce.providers import load_providers
from paidonce.providers.contract import TEST_HEADER, Delivery, Provider, SampleEvent
from paidonce.providers.samples import STATUSES, new_sample, omitted_fields
from paidonce.settings import demo
from paidonce.settings.sections import ServerSettings
from paidonce.terminal.commands import Json
from paidonce.terminal.output import Columns, print_json, print_table, stderr, stdout
from paidonce.terminal.session import Config, load_command_settings, run

if TYPE_CHECKING:
    from paidonce.cli.http import SendResult

MAX_SHOWN: Final = 20
_COLUMNS: Final[Columns] = {
    "#": lambda one: one[0],
    "HTTP": lambda one: one[1].http,
    "status": lambda one: one[1].status,
    "event": lambda one: one[1].event_id or one[1].detail,
    "ms": lambda one: f"{one[1].duration_ms:.1f}",
}


def send(
    config: Config = None,
    source: Annotated[str | None, typer.Option(help="The source to send to.")] = None,
    payment_id: Annotated[
        str | None, typer.Option(help="The gateway's payment id. Default: a new one.")
    ] = None,
    order: Annotated[
        str | None, typer.Option(help="The reference of the order that it pays.")
    ] = None,
    event_id: Annotated[
        str | None,
        typer.Option(help="The gateway's event id. Default: made from payment and status."),
    ] = None,
    amount: Annotated[str, typer.Option(help="In major units.")] = demo.PRICE,
    currency: Annotated[str, typer.Option(help="ISO 4217.")] = demo.CURRENCY,
    email: Annotated[str | None, typer.Option(help="The e-mail address of the payer.")] = None,
    plan: Annotated[str | None, typer.Option(help="The plan that was paid for.")] = None,
    status: Annotated[
        str, typer.Option(help=f"{', '.join(STATUSES)}, or a status of the gateway.")
    ] = "paid",
    times: Annotated[int, typer.Option(min=1, max=100_000, help="How many times to send it.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, max=1_000, help="How many at once.")] = 1,
    url: Annotated[str | None, typer.Option(help="The URL of the service.")] = None,
    json: Json = False,
) -> None:
    """Send a signed test webhook, once or many times, and show the responses."""
    from paidonce.cli.http import post_many

    settings, _ = load_command_settings(config)
    if settings.environment == "production":
        raise ConfigurationError("environment = 'production': test webhooks are refused there")
    name = source or next(iter(settings.sources))
    provider = load_providers(settings).get(name)
    if provider is None:
        known = ", ".join(settings.sources)
        hint = did_you_mean(name, settings.sources)
        raise ConfigurationError(f"--source {name}: unknown source; the sources are {known}{hint}")
    if provider.samples_are_process_local:
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
    headers, body = provider.build_sample(sample)
    _print_omitted_fields(provider, sample, Delivery(headers, body, CLOCK.now()))
    headers[TEST_HEADER] = "1"
    base = url or f"http://{settings.server.host}:{settings.server.port}"
    results = run(post_many(f"{base}/webhooks/{name}", headers, body, times, concurrency))
    _show_results(results, url or _operators_at(settings.server), as_json=json)


def _operators_at(server: ServerSettings) -> str:
    if server.admin_port is None:
        return f"http://{server.host}:{server.port}"
    return f"http://{server.admin_host}:{server.admin_port}"


def _print_omitted_fields(provider: Provider, sample: SampleEvent, made: Delivery) -> None:
    with suppress(PaidonceError):  # a sample that the provider cannot read is sent all the same
        for name in omitted_fields(sample, provider.translate(made)):
            stderr.print(f"{provider.name} webhooks have no field for {name}: it is left out.")


def _show_results(results: "list[SendResult]", base: str, as_json: bool) -> None:
    if as_json:
        print_json(results)
    elif len(results) > MAX_SHOWN:
        stdout.print(f"{len(results)} responses:")
        counts = Counter(f"{one.http} {one.status}" for one in results)
        for status, number in counts.most_common():
            stdout.print(f"  {number} × {status}")
    else:
        print_table(enumerate(results, 1), _COLUMNS)
    event_id = next((one.event_id for one in results if one.event_id), None)
    if event_id and not as_json:
        stderr.print(
            f"Audit trail: curl -H 'Authorization: Bearer po_…' {base}/api/v1/events/{event_id}"
        )
    if any(one.http != 200 for one in results):
        raise typer.Exit(1)
