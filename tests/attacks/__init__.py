"""Attacks on certificates with exact references; ``make attack`` runs many, the tests a few."""
