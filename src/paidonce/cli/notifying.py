"""`notify`: whether people can be told."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from paidonce.cli.terminal import Config, Json, chosen_settings, run, show
from paidonce.errors import ConfigurationError

if TYPE_CHECKING:
    from paidonce.engine.notifying import Trial

commands = typer.Typer(help="Notifications of what needs a person.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    app.add_typer(commands, name="notify")


@commands.callback()
def _group() -> None:
    """Keeps `test` a word of its own though it is the only one."""


@commands.command("test")
def try_channels(
    channel: Annotated[str | None, typer.Option(help="Only this one; else all.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Send a test message to each channel and say what was answered. Exit code 1 if one failed."""
    from paidonce.engine.channels import configured_channels
    from paidonce.engine.notifying import tried

    settings, _ = chosen_settings(config)
    channels = configured_channels(settings.notifications)
    if not channels:
        raise ConfigurationError(
            "notifications: there are none; add one, such as [notifications.ops] with "
            'kind = "slack" and url = "env:SLACK_URL"'
        )
    if channel is not None and channel not in channels:
        known = ", ".join(channels)
        raise ConfigurationError(f"--channel {channel}: there is no such one; known are {known}")
    chosen = [one for name, one in channels.items() if channel in (None, name)]

    async def try_all() -> "list[Trial]":
        return list(await asyncio.gather(*map(tried, chosen)))

    trials: list[Trial] = run(try_all())
    columns = {
        "channel": lambda trial: trial.channel,
        "kind": lambda trial: trial.kind,
        "": lambda trial: "taken" if trial.is_taken else "not taken",
        "said": lambda trial: trial.said,
    }
    show(trials, columns, json)
    raise typer.Exit(0 if all(trial.is_taken for trial in trials) else 1)
