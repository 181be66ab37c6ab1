"""Attacks on fits; ``python -m tests.attacks`` makes them with all others."""
