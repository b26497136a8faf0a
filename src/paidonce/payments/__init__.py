"""Payments: list, link, accept, mark for refund."""
