"""Links payments to users and orders, whichever comes first."""
