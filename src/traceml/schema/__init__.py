"""The data types that all stages share. Standard library only."""
