"""What becomes of an event that is processed again, or would."""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from paidonce.domain.events import Code, EventId
from paidonce.domain.money import Money
from paidonce.domain.state import Applied
from paidonce.engine.items import Refused, Result, Verdict
from paidonce.engine.verifying import Signature
from paidonce.store.reprocessing import Stored


class Fate(StrEnum):
    """What became of an event, where its status does not say it."""

    SETTLED = "settled"
    DUPLICATE = "duplicate"  # evidence of an event that has come in the meantime
    REFUSED = "refused"  # still, and for the same kind of reason
    FOREIGN = "source not configured"
    BUSY = "skipped"  # others had it in hand
    ASKED = "would be asked"  # said of events that are only looked at
    HANDLED = "would call handlers"


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """What became of one event that was processed again, or would."""

    stored: Stored
    fate: Fate
    signature: Signature | None = None
    code: str | None = None
    message: str | None = None
    verdict: Verdict | None = None
    applied: tuple[Money, ...] = ()

    @property
    def becomes(self) -> str:
        """The event's status now, or why there is none to tell."""
        outcome = self.verdict.outcome if self.verdict else None
        if self.fate is Fate.SETTLED and outcome is not None:
            return outcome.status
        return self.fate

    @property
    def event_id(self) -> EventId:
        """The event that it is: its own, or the one that evidence has become or repeats."""
        known = self.verdict.event_id if self.verdict else None
        return known or self.stored.event_id

    @property
    def is_changed(self) -> bool:
        """Whether the event stands otherwise than before."""
        is_other = self.becomes != self.stored.status or self.code != self.stored.error_code
        return bool(self.applied) or (self.fate in (Fate.SETTLED, Fate.DUPLICATE) and is_other)


def settled_again(stored: Stored, signature: Signature, verdict: Verdict) -> Again:
    """What a verdict on a stored event means for it."""
    match verdict.result:
        case Result.BUSY | Result.NOT_STORED:
            return Again(stored, Fate.BUSY, code=stored.error_code)
        case Result.DUPLICATE:
            return Again(stored, Fate.DUPLICATE, signature, verdict=verdict)
        case Result.CONFLICT:
            message = verdict.outcome.message if verdict.outcome else None
            return Again(stored, Fate.REFUSED, signature, Code.PAYLOAD_CONFLICT, message)
        case (
            Result.PROCESSED
            | Result.IGNORED
            | Result.UNLINKED
            | Result.ACCEPTED
            | Result.FAILED_RETRYABLE
            | Result.FAILED_FINAL
            | Result.DEAD_LETTER
        ):
            return _settled(stored, signature, verdict)
        case _:
            assert_never(verdict.result)


def _settled(stored: Stored, signature: Signature, verdict: Verdict) -> Again:
    if isinstance(verdict.item, Refused):
        refusal = verdict.item.refusal
        return Again(stored, Fate.REFUSED, signature, refusal.code, str(refusal))
    assert verdict.outcome is not None
    done = verdict.decision.done if verdict.decision else ()
    paid = (one.payment.facts.captured for one in done if isinstance(one, Applied))
    applied = tuple(one for one in paid if one is not None)
    outcome = verdict.outcome
    return Again(stored, Fate.SETTLED, signature, outcome.code, outcome.message, verdict, applied)
