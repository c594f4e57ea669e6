"""The command ``blinksim``, also as ``python -m blinksim``.

Ctrl-C ends it quietly at any time: by the signal itself while modules load and while Python shuts down.
"""

import signal
import sys


def main() -> None:
    """The console script."""
    # Not where the shell has it ignored, as behind nohup.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from blinksim.cli.main import run

    status = 128 + signal.SIGINT
    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = run()
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:  # In the moment before or after `run`, which sees to all others.
        pass
    sys.exit(status)


if __name__ == "__main__":
    main()
