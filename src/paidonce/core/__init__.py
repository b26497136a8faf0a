"""Values and rules of money: pure functions, no I/O, no clock."""
