"""Payments out of a wallet, carried out by a gateway, and the read model of them."""
