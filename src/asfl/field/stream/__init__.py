"""Clients over gRPC: one long-lived stream each, behind TLS and credentials that work once."""
