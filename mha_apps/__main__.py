"""``python -m mha_apps`` is the same as the command ``mha-apps``."""

from mha_apps.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
