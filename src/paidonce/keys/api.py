"""HTTP routes of API keys."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI
from pydantic import StringConstraints

from paidonce.api.requests import Admin, FromQuery
from paidonce.core.actors import Scope
from paidonce.core.input import Input, Text
from paidonce.db.paging import ListQuery, Page
from paidonce.keys.service import KeyService, KeyView, NewKeyView


class NewKey(Input):
    """The purpose and the scope of a new key."""

    name: Annotated[Text, StringConstraints(min_length=1, max_length=100)]
    scope: Scope


def add_to(api: FastAPI, keys: KeyService) -> None:
    @api.post("/api/v1/keys", status_code=201, tags=["keys"])
    async def create_key(body: NewKey, actor: Admin) -> NewKeyView:
        """Create a key. It is shown only once; only its hash is stored."""
        return await keys.create(body.name, body.scope, actor)

    @api.get("/api/v1/keys", tags=["keys"])
    async def list_keys(query: FromQuery[ListQuery], actor: Admin) -> Page[KeyView]:
        """Keys, oldest first, also revoked ones; only their first characters are shown."""
        return await keys.search(query)

    @api.delete("/api/v1/keys/{key_id}", status_code=204, tags=["keys"])
    async def revoke_key(key_id: UUID, actor: Admin) -> None:
        """Revoke a key."""
        await keys.revoke(key_id, actor)
