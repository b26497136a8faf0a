"""How events leave and how they are taken: the relay, the two buses, and their consumers (BUS-1)."""
