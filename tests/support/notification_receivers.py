"""Those who are told: a receiver of webhooks, also of Slack's, and a mail server."""

import asyncio
import base64
import json
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self

from aiohttp import web
from standardwebhooks import Webhook


@dataclass
class Receiver:
    """Takes whatever is POSTed, or does what it is told to do instead."""

    statuses: list[int] = field(default_factory=list)  # of the next answers; then 200
    is_hanging: bool = False
    is_redirecting: bool = False
    heard: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    _runner: web.AppRunner | None = None
    _leave: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/{path:.*}", self._take)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}/hook"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave.set()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.heard.append((headers, await request.read()))
        if self.is_hanging:
            await self._leave.wait()
        if self.is_redirecting:
            return web.Response(status=307, headers={"location": "/elsewhere"})
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status, body=b"x" * 100_000)

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.heard]

    def verified(self, secret: str) -> list[Any]:
        """What was said, after the official library has checked each signature."""
        return [Webhook(secret).verify(body, headers) for headers, body in self.heard]

    @property
    def texts(self) -> list[str]:
        """What Slack would show."""
        return [json.loads(body)["text"] for _, body in self.heard]


@dataclass
class MailServer:
    """As much of SMTP as a client needs (RFC 5321, RFC 4954), without encryption."""

    password: str | None = None
    refuses: bool = False
    is_hanging: bool = False
    mails: list[EmailMessage] = field(default_factory=list)
    envelopes: list[tuple[str, list[str]]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    port: int = 0
    _server: asyncio.Server | None = None
    _conversations: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations.append(task)
        try:
            await (reader.read() if self.is_hanging else self._converse(reader, writer))
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender, to = "", list[str]()
        writer.write(b"220 here\r\n")
        while line := (await reader.readline()).decode().strip():
            self.commands.append(line)
            word, _, rest = line.partition(" ")
            if word.upper() == "EHLO":
                writer.write(b"250-here\r\n250 AUTH PLAIN\r\n")
            elif word.upper() == "AUTH":
                said = base64.b64decode(rest.partition(" ")[2]).split(b"\0")
                is_right = self.password is not None and said[2] == self.password.encode()
                writer.write(b"235 welcome\r\n" if is_right else b"535 no\r\n")
            elif word.upper() == "MAIL":
                sender = rest
                writer.write(b"451 not now\r\n" if self.refuses else b"250 ok\r\n")
            elif word.upper() == "RCPT":
                to.append(rest)
                writer.write(b"250 ok\r\n")
            elif word.upper() == "DATA":
                writer.write(b"354 go on\r\n")
                self._keep(sender, to, await reader.readuntil(b"\r\n.\r\n"))
                writer.write(b"250 taken\r\n")
            elif word.upper() == "QUIT":
                writer.write(b"221 bye\r\n")
                return
            else:
                writer.write(b"250 ok\r\n")

    def _keep(self, sender: str, to: list[str], raw: bytes) -> None:
        mail = message_from_bytes(raw.removesuffix(b"\r\n.\r\n"), policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.envelopes.append((sender, to))
