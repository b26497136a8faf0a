"""Wallets: accounts, ledger, reservations."""
