"""The frozen teacher: its inputs, its scores, and whether it fits the student."""
