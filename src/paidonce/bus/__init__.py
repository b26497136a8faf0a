"""How events leave and how they are taken: relay, two buses, consumers (BUS-1)."""
