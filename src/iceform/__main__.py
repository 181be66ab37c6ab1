"""``python -m iceform`` is the ``iceform`` command."""

from iceform.cli import main

if __name__ == "__main__":
    main()
