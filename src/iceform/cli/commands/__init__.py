"""One file per subcommand of ``iceform``."""
