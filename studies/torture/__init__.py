"""Attacks in bulk on run folders, inputs and the field; `make torture` prints what was tried and what broke."""
