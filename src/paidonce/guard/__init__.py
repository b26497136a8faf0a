"""Protects the webhook endpoint: rate limits, bans, allow lists."""
