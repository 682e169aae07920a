"""Lives in the training process: patches, phase switch, step rows. Standard library and torch only."""
