"""``python -m blinksim``."""

from blinksim.cli.main import main

if __name__ == "__main__":
    main()
