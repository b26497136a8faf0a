"""Notifications of problems that need a person: by webhook, e-mail or Slack."""
