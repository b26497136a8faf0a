"""The user's own handlers, called in the transaction of a payment."""
