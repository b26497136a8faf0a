"""The HTTP route of reloads."""

from fastapi import FastAPI

from paidonce.api.requests import Admin
from paidonce.reload.model import Reload
from paidonce.reload.service import ReloadService


def add_to(api: FastAPI, reloads: ReloadService) -> None:
    @api.post("/api/v1/reload", tags=["settings"])
    async def reload_settings(actor: Admin) -> Reload:
        """Have all running processes read their settings again. All take them, or none does.

        `status` is `TAKEN` or `REFUSED`, and `reason` says why it was refused. Names of settings
        are shown, never their values.
        """
        return await reloads.reload(actor)
