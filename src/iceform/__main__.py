"""``python -m iceform`` is the ``iceform`` command."""

from iceform.cli import main

raise SystemExit(main())
