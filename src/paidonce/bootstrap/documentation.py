"""The OpenAPI description, and the page that shows it."""

from collections.abc import Collection, Iterator
from functools import cache
from threading import Lock
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel

from paidonce.api.problems import CONTENT_TYPE
from paidonce.api.requests import Needs
from paidonce.core.actors import Scope
from paidonce.inbox.edge import PREFIX, SAMPLES

Call = dict[str, Any]


class ProblemBody(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str


DESCRIPTION_PATH: Final = "/openapi.json"
DELIVERY_PATH: Final = f"{PREFIX}{{source}}"
SAMPLE_PATH: Final = f"{DELIVERY_PATH}{SAMPLES}"

ERRORS: Final = {
    400: "The request is not valid.",
    401: "No valid API key, or no valid signature.",
    403: "The scope of the key, or the address, does not allow it.",
    404: "It does not exist.",
    405: "There is no such method.",
    408: "The request did not arrive in time.",
    409: "It conflicts with the current state.",
    413: "The body is too large.",
    415: "The source does not send this content type.",
    429: "There were too many requests.",
    503: "The database is unavailable, or too many requests are waiting: send it again.",
}
_OF_DELIVERIES: Final = frozenset(ERRORS) - {405}
_OF_SAMPLES: Final = frozenset({400, 401, 403, 404, 409, 413, 503})


def add_to(api: FastAPI) -> None:
    """Add the page; it needs no internet."""
    api.mount("/docs/assets", StaticFiles(packages=[("fastapi_offline", "static")]))
    api.get("/docs", include_in_schema=False)(_docs)
    api.get("/", include_in_schema=False)(_docs)


def describe(api: FastAPI, sources: Collection[str]) -> None:
    """Add the OpenAPI description. It takes long, and is made when it is first asked for."""
    made = cache(lambda: _description(api, sources))
    making = Lock()

    # No coroutine: FastAPI calls it in a thread, and deliveries go on meanwhile.
    def described(request: Request) -> JSONResponse:
        with making:
            description = made()
        root = request.scope.get("root_path", "").rstrip("/")
        return JSONResponse(description | ({"servers": [{"url": root}]} if root else {}))

    api.get(DESCRIPTION_PATH, include_in_schema=False)(described)


def _description(api: FastAPI, sources: Collection[str]) -> dict[str, Any]:
    """All of it: deliveries, errors as they are answered, and scopes."""
    description = api.openapi()
    schemas = description.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["ProblemBody"] = ProblemBody.model_json_schema()
    scopes = dict(_scopes(api))
    for path, method, call in _calls(description):
        call["responses"].pop("422", None)
        errors = _errors(path, method, call)
        call["responses"] |= {str(status): _error(status) for status in sorted(errors)}
        if (path, method) in scopes:
            call["x-scope"] = scopes[path, method]
    description["paths"][DELIVERY_PATH] = {"post": _delivery(sources)}
    return description


def _calls(description: dict[str, Any]) -> Iterator[tuple[str, str, Call]]:
    for path, methods in description["paths"].items():
        for method, call in methods.items():
            yield path, method, call


def _errors(path: str, method: str, call: Call) -> Collection[int]:
    """The errors that a call can be answered with, besides those that it names itself."""
    if path == SAMPLE_PATH:
        return _OF_SAMPLES
    if not path.startswith("/api/"):
        return ()
    has_body = "requestBody" in call
    errors = {400, 401, 403, 429, 503}
    errors |= {404} if has_body or "{" in path else set()
    errors |= {409} if method != "get" else set()
    return errors | ({413} if has_body else set())


def _error(status: int, *others: str) -> Call:
    schema = {"$ref": "#/components/schemas/ProblemBody"}
    content: dict[str, Any] = {CONTENT_TYPE: {"schema": schema}}
    content |= {media_type: {"schema": {}} for media_type in others}
    return {"description": ERRORS[status], "content": content}


def _scopes(api: FastAPI) -> Iterator[tuple[tuple[str, str], Scope]]:
    """What each call needs of a key."""
    for route in api.routes:
        if not isinstance(route, APIRoute):
            continue
        for needs in _needs(route.dependant):
            for method in route.methods or ():
                yield (route.path_format, method.lower()), needs.scope


def _needs(dependant: Dependant) -> Iterator[Needs]:
    for one in dependant.dependencies:
        if isinstance(one.call, Needs):
            yield one.call
        yield from _needs(one)


def _delivery(sources: Collection[str]) -> Call:
    """What the edge does, which is no part of the API's own application."""
    content: Call = {kind: {"schema": {}} for kind in ("application/json", _FORM)}
    parameter = {"name": "source", "in": "path", "required": True}
    acknowledgement = {
        "type": "object",
        "required": ["status"],
        "properties": {
            "status": {"enum": ["success", "duplicate", "ignored", "accepted", "conflict"]},
            "event_id": {"type": "string", "format": "uuid"},
            "orderId": {"type": ["string", "null"]},
        },
    }
    taken = {
        "description": "The event is stored, and the answer is as the gateway wants it.",
        "content": {
            "application/json": {"schema": acknowledgement},
            "text/plain": {"schema": {"enum": ["success", "ok"]}},
        },
    }
    # Gateways that dictate a body dictate it for errors too: `fail`, or why it was not approved.
    errors = {
        str(status): _error(status, "text/plain", "application/json")
        for status in sorted(_OF_DELIVERIES)
    }
    return {
        "tags": ["webhooks"],
        "summary": "Deliver",
        "description": (
            "Where a gateway sends its webhooks. The body and the headers that sign it are those "
            "of the source's gateway; the answer leaves when the event is committed."
        ),
        "operationId": "deliver",
        "parameters": [{**parameter, "schema": {"type": "string", "enum": sorted(sources)}}],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": taken, **errors},
    }


_FORM: Final = "application/x-www-form-urlencoded"


async def _docs(request: Request) -> HTMLResponse:
    root = request.scope.get("root_path", "").rstrip("/")
    return get_swagger_ui_html(
        openapi_url=f"{root}{DESCRIPTION_PATH}",
        title="Paidonce",
        swagger_js_url=f"{root}/docs/assets/swagger-ui-bundle.js",
        swagger_css_url=f"{root}/docs/assets/swagger-ui.css",
        swagger_favicon_url=f"{root}/docs/assets/favicon.png",
    )
