"""Any other sender, described by the settings of its source alone.

    [sources.rzp.signature]
    header = "X-Razorpay-Signature"
    algorithm = "hmac-sha256"          # hmac-sha1, hmac-sha512, ed25519, rsa-sha256
    encoding = "hex"                   # base64
    prefix = ""                        # before each signature, such as "sha256="
    signed = "{body}"                  # of {body}, {timestamp}, {id} and {url}
    pairs = false                      # true: the header is such as "ts=…;h1=…"; then
    value = "h1"                       # the name of each signature in it
    timestamp = "ts"                   # and of the time; without pairs the header of the time
    id = "X-Event-Id"                  # the header of {id}; else that of fields.event_id
    url = "https://…/webhooks/rzp"     # what {url} is: never taken from the request

`scheme.py` checks these settings; `field_mapping.py` describes the fields and types of events.

The key of an event is its id, in the body or signed as `{id}`; without one, a digest of its type,
order, payment and time, or of the body if it has no time. Anybody who has seen a delivery can
change a field in an unsigned header: it takes no part in the key, and what has no signed id has the
digest of its body as key. One captured delivery is one event, whatever its headers say.
"""

from dataclasses import dataclass
from typing import ClassVar

from paidonce.core.events import EventType
from paidonce.errors import ConfigurationError
from paidonce.providers import contract
from paidonce.providers.field_mapping import (
    FieldMapping,
    MappedProvider,
    check_unsigned,
    load_mapping,
)
from paidonce.providers.fields import EventFields
from paidonce.providers.generic.scheme import SignatureScheme, load_scheme


@dataclass(frozen=True, slots=True, eq=False)
class Generic(MappedProvider):
    """A source whose settings describe its sender."""

    name: ClassVar = "generic"

    scheme: SignatureScheme

    def verify(self, delivery: contract.Delivery) -> None:
        self.scheme.verify(delivery, self.tolerance_s)

    def identify(self, delivery: contract.Delivery) -> contract.Identity:
        fields = delivery.parse_once(self.mapping.read_fields)
        signed_id = self.scheme.signed_id(delivery.headers)
        if fields.event_id is None:
            fields = fields._replace(event_id=signed_id)
        key = signed_id if "event_id" in self.unsigned else fields.event_id
        if key is None and not self.unsigned:
            key = _build_key(fields)
        return self.identity_of(fields, key, delivery)

    def signing_keys(self) -> tuple[bytes, ...]:
        return self.scheme.keys.all

    def recipient(self) -> str | None:
        return self.scheme.url

    def signature_method(self, delivery: contract.Delivery) -> str:
        return self.scheme.keys.algorithm

    def build_sample(self, sample: contract.SampleEvent) -> contract.Webhook:
        body, headers = self.mapping.build_sample(sample)
        signed = self.scheme.sign(body, sample.event_id, sample.sent_at)
        return {**headers, "content-type": contract.JSON_TYPE, **signed}, body


def configure(config: contract.ProviderConfig) -> Generic:
    """Build the provider of a source. Raises ConfigurationError."""
    config.reject_unknown_options({"signature", "fields", "types"})
    scheme = load_scheme(config)
    mapping = load_mapping(config, {}, {})
    _check_mapping(config.key, mapping)
    signed, read = scheme.signed_headers, mapping.headers
    kept = frozenset({*contract.COMMON_HEADERS, *signed, *read, scheme.header})
    unsigned = mapping.unsigned_fields(signed)
    check_unsigned(config.key, unsigned)
    return Generic(mapping, config.tolerance_s, kept, unsigned, scheme)


def _build_key(fields: EventFields) -> str | None:
    """Build a key for an event without an id; None if it lacks its payment or time."""
    if fields.payment_id is None or fields.occurred_at is None:
        return None
    parts = (fields.type, fields.order, fields.payment_id, fields.occurred_at)
    return contract.fingerprint(*parts).hex()


def _check_mapping(key: str, mapping: FieldMapping) -> None:
    """Raise ConfigurationError when no event of the source could ever have an effect."""
    if not any(mapping.types.values()):
        raise ConfigurationError(
            f'{key}.types: is required: the meaning of each type, e.g. "charge.ok" = "paid"'
        )
    has_money = {EventType.PAID, EventType.REFUNDED} & {*mapping.types.values()}
    for name in ("type", "payment_id", *(("amount", "currency") if has_money else ())):
        if not {name, f"{name}_minor"} & mapping.locations.keys():
            raise ConfigurationError(
                f'{key}.fields.{name}: is required, e.g. "/data/{name}" or "header:NAME"'
            )
