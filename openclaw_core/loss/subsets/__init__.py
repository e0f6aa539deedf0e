"""Supports, one per file: the file's name is the subset's name and it binds SUBSET."""
