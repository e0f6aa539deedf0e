"""The loop: plans, runs and what they leave on disk."""
