"""A run for monitoring systems: what a Summary says, as Prometheus text and as OpenTelemetry metrics."""
