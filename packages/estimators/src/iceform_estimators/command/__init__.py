"""Commands of ``iceform`` for tables."""
