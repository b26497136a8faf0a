"""What a payment is and what an event does to it: pure values and rules, no I/O, no clock."""
