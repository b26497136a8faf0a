"""The operators' HTTP API, thin over `operations`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Generic, TypeVar
from uuid import UUID

from fastapi import FastAPI, Query, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException
from uuid_utils.compat import uuid7

from paidonce import __version__
from paidonce.domain.events import EventStatus
from paidonce.domain.orders import MAX_REFERENCE, Kind
from paidonce.domain.payments import PaymentStatus
from paidonce.engine.linking import User
from paidonce.errors import PaidonceError
from paidonce.operations import MAX_PAGE, Operations, OrderRequest
from paidonce.telemetry import logger
from paidonce.views import (
    BookingView,
    EventDetail,
    EventView,
    OrderView,
    PaymentView,
    SubscriptionView,
    WalletView,
)
from paidonce.web.auth import Operator, ProblemError, Reader, Verbs
from paidonce.web.problems import INTERNAL, Problem, problem_of

log = logger(__name__)

T = TypeVar("T")


Text = Annotated[str, StringConstraints(max_length=1_000, pattern=r"^[^\x00]*$")]
"""Text that the database can hold."""


Reference = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_REFERENCE, pattern=r"^[^\x00]*$")
]
"""A name that the merchant gave."""


class Page(BaseModel, Generic[T]):
    """Part of a list. `next_cursor` asks for what follows; null at the end."""

    items: list[T]
    next_cursor: str | None = None


class ProblemBody(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str


class NewUser(BaseModel):
    """Says that the address was verified: payments made under it are this user's."""

    model_config = ConfigDict(extra="forbid")
    email: Text


class Link(BaseModel):
    """Whose payment it is, or which order's; give one."""

    model_config = ConfigDict(extra="forbid")
    user_id: UUID | None = None
    email: Text | None = None
    order: Text | None = None


class Reason(BaseModel):
    """Why; it stands in the audit log."""

    model_config = ConfigDict(extra="forbid")
    reason: Annotated[Text, StringConstraints(min_length=1)]


class NewOrder(BaseModel):
    """What is to be paid for.

    A `subscription` needs `user_id` or `email`, and the `plan_id` of its period unless there is a
    default plan; a `wallet` top-up needs `wallet_id`, or `user_id` for the user's own wallet.
    `sources`, if given, are the only ones that may pay it.
    """

    model_config = ConfigDict(extra="forbid")
    reference: Reference
    amount: Text
    currency: Text
    kind: Kind = Kind.ORDER
    user_id: UUID | None = None
    email: Text | None = None
    plan_id: Text | None = None
    wallet_id: UUID | None = None
    sources: Annotated[list[Text], Field(max_length=100)] | None = None


class NewWallet(BaseModel):
    """One per owner and currency."""

    model_config = ConfigDict(extra="forbid")
    owner: Reference
    currency: Text


Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": ProblemBody, "content": {"application/problem+json": {}}}
    for code in (400, 401, 403, 404, 409, 503)
}


def operators_api(operations: Operations) -> FastAPI:
    """The application for everything that is not a delivery."""
    api = FastAPI(
        title="Paidonce", version=__version__, docs_url=None, redoc_url=None, responses=_ERRORS
    )
    api.state.operations = operations
    api.add_exception_handler(PaidonceError, _on_error)
    api.add_exception_handler(ProblemError, _on_error)
    api.add_exception_handler(RequestValidationError, _on_error)
    api.add_exception_handler(HTTPException, _on_error)
    api.add_exception_handler(Exception, _on_error)
    api.mount("/docs/assets", StaticFiles(packages=[("fastapi_offline", "static")]))
    api.get("/docs", include_in_schema=False)(_docs)
    api.get("/", include_in_schema=False)(_docs)
    _add_users(api)
    _add_orders(api)
    _add_wallets(api)
    _add_payments(api)
    _add_events(api)
    return api


def describe(api: FastAPI) -> None:
    """Make the OpenAPI description say what is true: invalid input is answered 400, not 422."""
    description = api.openapi()
    for path in description["paths"].values():
        for call in path.values():
            call["responses"].pop("422", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        description["components"]["schemas"].pop(unused, None)


def _add_users(api: FastAPI) -> None:
    @api.post("/api/v1/users", status_code=status.HTTP_201_CREATED, tags=["users"])
    async def create_user(body: NewUser, verbs: Verbs, actor: Operator, answer: Response) -> User:
        """Create a user. A repeat returns the one that is there, with 200.

        What was paid under the address before is applied when the answer arrives.
        """
        user, is_new = await verbs.create_user(body.email)
        answer.status_code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return user

    @api.get("/api/v1/users", tags=["users"])
    async def find_users(email: Text, verbs: Verbs, actor: Reader) -> Page[User]:
        """The user with this address, in any letter case."""
        return Page(items=await verbs.users_by_email(email))

    @api.get("/api/v1/users/{user_id}", tags=["users"])
    async def get_user(user_id: UUID, verbs: Verbs, actor: Reader) -> User:
        """One user."""
        return await verbs.user(user_id)

    @api.get("/api/v1/subscriptions", tags=["subscriptions"])
    async def list_subscriptions(
        verbs: Verbs, actor: Reader, user_id: UUID | None = None, email: Text | None = None
    ) -> Page[SubscriptionView]:
        """The subscriptions of one user, found by id or by address."""
        return Page(items=await verbs.subscriptions(user_id=user_id, email=email))


def _add_orders(api: FastAPI) -> None:
    @api.post("/api/v1/orders", status_code=status.HTTP_201_CREATED, tags=["orders"])
    async def create_order(
        body: NewOrder, verbs: Verbs, actor: Operator, answer: Response
    ) -> OrderView:
        """Create an order. A repeat returns the one that is there, with 200.

        What was paid for it before is applied when the answer arrives. Other content under the
        same reference is 409.
        """
        asked = body.model_dump(exclude={"sources"})
        sources = None if body.sources is None else tuple(body.sources)
        order, is_new = await verbs.create_order(OrderRequest(**asked, sources=sources))
        answer.status_code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return order

    @api.get("/api/v1/orders/{reference:path}", tags=["orders"])
    async def get_order(reference: Reference, verbs: Verbs, actor: Reader) -> OrderView:
        """One order and its payments."""
        return await verbs.order(reference)

    @api.post("/api/v1/orders/{reference:path}/cancel", tags=["orders"])
    async def cancel_order(reference: Reference, verbs: Verbs, actor: Operator) -> OrderView:
        """Close an order that is not paid. Money that comes later is kept, and never applied."""
        return await verbs.close_order(reference, actor)

    @api.get("/api/v1/bookings/{reference:path}", tags=["orders"])
    async def get_booking(reference: Reference, verbs: Verbs, actor: Reader) -> BookingView:
        """One booking."""
        return await verbs.booking(reference)


def _add_wallets(api: FastAPI) -> None:
    @api.post("/api/v1/wallets", status_code=status.HTTP_201_CREATED, tags=["wallets"])
    async def create_wallet(
        body: NewWallet, verbs: Verbs, actor: Operator, answer: Response
    ) -> WalletView:
        """Create a wallet. A repeat returns the one that is there, with 200."""
        wallet, is_new = await verbs.create_wallet(body.owner, body.currency)
        answer.status_code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return wallet

    @api.get("/api/v1/wallets/{wallet_id}", tags=["wallets"])
    async def get_wallet(wallet_id: UUID, verbs: Verbs, actor: Reader) -> WalletView:
        """One wallet: what is in it, and what of it is free."""
        return await verbs.wallet(wallet_id)


def _add_payments(api: FastAPI) -> None:
    @api.get("/api/v1/payments", tags=["payments"])
    async def list_payments(
        verbs: Verbs,
        actor: Reader,
        source: Text | None = None,
        status: PaymentStatus | None = None,
        applied: bool | None = None,
        email: Text | None = None,
        order: Text | None = None,
        review: Text | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[PaymentView]:
        """Payments, the newest first. `applied=false`: money received and not applied.

        `review` is the code for which a person should look, such as `AMOUNT_MISMATCH`.
        """
        items = await verbs.payments(
            limit=limit + 1,
            cursor=cursor,
            source=source,
            status=status,
            applied=applied,
            email=email,
            order_reference=order,
            review=review,
        )
        return _page(items, limit)

    @api.get("/api/v1/payments/{payment_id}", tags=["payments"])
    async def get_payment(payment_id: UUID, verbs: Verbs, actor: Reader) -> PaymentView:
        """One payment."""
        return await verbs.payment(payment_id)

    @api.post("/api/v1/payments/{payment_id}/link", tags=["payments"])
    async def link_payment(
        payment_id: UUID, body: Link, verbs: Verbs, actor: Operator
    ) -> PaymentView:
        """Say whose payment it is, or which order's; it is applied at once if it can be.

        One that is not applied may be linked to something else than before.
        """
        return await verbs.link_payment(
            payment_id, actor, user_id=body.user_id, email=body.email, order=body.order
        )

    @api.post("/api/v1/payments/{payment_id}/accept", tags=["payments"])
    async def accept_payment(
        payment_id: UUID, body: Reason, verbs: Verbs, actor: Operator
    ) -> PaymentView:
        """Take a payment whose sum is not the price; it is applied at once if it can be."""
        return await verbs.accept_payment(payment_id, actor, body.reason)

    @api.post("/api/v1/payments/{payment_id}/want-refund", tags=["payments"])
    async def want_refund(
        payment_id: UUID, body: Reason, verbs: Verbs, actor: Operator
    ) -> PaymentView:
        """Mark a payment that is not applied for refund: it never will be."""
        return await verbs.want_refund(payment_id, actor, body.reason)


def _add_events(api: FastAPI) -> None:
    @api.get("/api/v1/events", tags=["events"])
    async def list_events(
        verbs: Verbs,
        actor: Reader,
        source: Text | None = None,
        status: EventStatus | None = None,
        error_code: Text | None = None,
        order: Text | None = None,
        payment: Text | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[EventView]:
        """Events, the newest first; rejected and conflicting deliveries are events too."""
        items = await verbs.events(
            limit=limit + 1,
            cursor=cursor,
            since=since,
            until=until,
            source=source,
            status=status,
            error_code=error_code,
            order_reference=order,
            payment=payment,
        )
        return _page(items, limit)

    @api.get("/api/v1/events/{event_id}", tags=["events"])
    async def get_event(event_id: UUID, verbs: Verbs, actor: Reader) -> EventDetail:
        """One event with its whole trail."""
        return await verbs.event(event_id)


Viewed = TypeVar("Viewed", PaymentView, EventView)


def _page(items: Sequence[Viewed], limit: int) -> Page[Viewed]:
    """One more than the limit was asked for, to know whether something follows."""
    shown = list(items[:limit])
    follows = len(items) > limit
    return Page(items=shown, next_cursor=str(shown[-1].id) if follows else None)


async def _docs(request: Request) -> HTMLResponse:
    root = request.scope.get("root_path", "").rstrip("/")
    return get_swagger_ui_html(
        openapi_url=f"{root}/openapi.json",
        title="Paidonce",
        swagger_js_url=f"{root}/docs/assets/swagger-ui-bundle.js",
        swagger_css_url=f"{root}/docs/assets/swagger-ui.css",
        swagger_favicon_url=f"{root}/docs/assets/favicon.png",
    )


async def _on_error(request: Request, error: Exception) -> Response:
    request_id = str(uuid7())
    problem = _problem(error)
    if problem is INTERNAL:
        log.error("api_failed", request_id=request_id, path=request.url.path, exc_info=error)
    headers = problem.headers() | {"x-request-id": request_id}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(problem.body(request_id), problem.status, headers)


def _problem(error: Exception) -> Problem:
    match error:
        case ProblemError():
            return error.problem
        case RequestValidationError():
            return Problem(400, "INVALID_REQUEST", "; ".join(_complaints(error)))
        case HTTPException():
            code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "REFUSED")
            return Problem(error.status_code, code, str(error.detail))
        case PaidonceError():
            return problem_of(error)
        case _:
            return INTERNAL


def _complaints(error: RequestValidationError) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in one['loc'][1:]) or 'body'}: {one['msg']}"
        for one in error.errors()
    ]
