"""Clients as actors of a Ray cluster."""
