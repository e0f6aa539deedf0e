"""Typed configuration: schema, loading with origins, cross-field checks. Imports no torch."""
