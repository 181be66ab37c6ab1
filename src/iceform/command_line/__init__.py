"""The command line, behind :mod:`iceform.cli`.

``commands`` has one file per subcommand and ``app`` the table of them. A command reads its
arguments, and imports what it needs only when it is called.
"""
