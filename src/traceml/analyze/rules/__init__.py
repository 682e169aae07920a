"""The diagnoses: each is one function that measures and one row with its thresholds and sentences."""
