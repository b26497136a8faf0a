"""The message bus: outbox, relay, consumers, dead letters; on PostgreSQL or Kafka (BUS-1)."""
