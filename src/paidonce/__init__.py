"""Paidonce receives payment webhooks from many gateways and makes each one count exactly once."""

__version__ = "0.1.0"
