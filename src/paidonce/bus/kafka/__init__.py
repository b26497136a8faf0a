"""Apache Kafka as the bus."""
