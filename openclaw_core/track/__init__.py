"""Metric names, their sinks, and what a run's state is read from."""
