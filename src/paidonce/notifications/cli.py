"""`paidonce notify`."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from paidonce.errors import ConfigurationError, did_you_mean
from paidonce.terminal.commands import Commands, Json
from paidonce.terminal.output import columns, show
from paidonce.terminal.session import Config, load_command_settings, run

if TYPE_CHECKING:
    from paidonce.notifications.channels import ChannelTest

commands = Commands("notify", "Notifications of problems: test the channels.")

_COLUMNS: Final = columns(
    "channel, kind, result, answer", result=lambda test: "sent" if test.is_sent else "failed"
)


@commands.callback()
def _group() -> None:
    """Keeps `test` a subcommand although it is the only one."""


@commands.command("test")
def send_test_messages(
    channel: Annotated[str | None, typer.Option(help="Only this channel.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Send a test message to each channel, and show the answers. Exit code 1 if one failed."""
    from paidonce.notifications.channels import load_channels, send_test

    settings, _ = load_command_settings(config)
    channels = load_channels(settings.notifications)
    if not channels:
        raise ConfigurationError(
            "notifications: no channel is configured; add one, such as [notifications.ops] with "
            'kind = "slack" and url = "env:SLACK_URL"'
        )
    if channel is not None and channel not in channels:
        names, hint = ", ".join(channels), did_you_mean(channel, channels)
        raise ConfigurationError(
            f"--channel {channel}: there is no such channel; use {names}{hint}"
        )
    chosen = [one for name, one in channels.items() if channel in (None, name)]

    async def send_all() -> "list[ChannelTest]":
        return list(await asyncio.gather(*map(send_test, chosen)))

    tests: list[ChannelTest] = run(send_all())
    show(tests, json, _COLUMNS)
    raise typer.Exit(0 if all(test.is_sent for test in tests) else 1)
