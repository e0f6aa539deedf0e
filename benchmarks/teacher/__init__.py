"""Tokens, time and memory of the teacher's scoring, against the published loop's schedule on the same model code."""
