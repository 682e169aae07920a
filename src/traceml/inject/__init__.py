"""What `traceml run` puts in front of PYTHONPATH. Standard library only, silent until torch is imported."""
