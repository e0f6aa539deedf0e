"""A small world to learn in: text tasks, styles a user may prefer, users who talk, and a judge that reads what they say."""
