"""Devices that join by one command: who signs their keys, who they are, and the runs they take part in."""
