"""Experiment trackers: each logs the result to the tracker's own run, inside the training process."""
