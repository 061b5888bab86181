"""Sinks of events: HTTP, Kafka, and Parquet files in an S3-compatible store."""
