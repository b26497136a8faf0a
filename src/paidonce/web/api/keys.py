"""API keys, for those who may hand them out."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, StringConstraints

from paidonce.operations import Scope
from paidonce.views import KeyView, NewKeyView
from paidonce.web.api.shapes import Limit, Page, Text, page
from paidonce.web.auth import Admin, Verbs


class NewKey(BaseModel):
    """What the key is for, and what it may do."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[Text, StringConstraints(min_length=1, max_length=100)]
    scope: Scope


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.post("/api/v1/keys", status_code=201, tags=["keys"])
    async def create_key(body: NewKey, verbs: Verbs, actor: Admin) -> NewKeyView:
        """Make a key. It is shown this once; only its hash is kept."""
        return await verbs.create_key(body.name, body.scope, actor)

    @api.get("/api/v1/keys", tags=["keys"])
    async def list_keys(
        verbs: Verbs, actor: Admin, limit: Limit = 50, cursor: UUID | None = None
    ) -> Page[KeyView]:
        """Keys, the oldest first, revoked ones too; of each only its first characters."""
        return page(await verbs.keys(limit=limit, cursor=cursor))

    @api.delete("/api/v1/keys/{key_id}", status_code=204, tags=["keys"])
    async def revoke_key(key_id: UUID, verbs: Verbs, actor: Admin) -> None:
        """Make a key invalid for good."""
        await verbs.revoke_key(key_id, actor)
