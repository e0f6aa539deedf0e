"""Divergences of the OPD term, one per file: the file's name is the divergence's name and it binds DIVERGENCE."""
