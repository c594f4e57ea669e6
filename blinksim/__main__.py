"""The command ``blinksim``, also as ``python -m blinksim``.

Ctrl-C ends it quietly at any time: by the signal itself while modules load and while Python shuts down.
"""

import gc
import signal
import sys

# Net new objects between two searches for circles of unused ones: of the hundreds of thousands of parts of a
# cluster all stay, and Python's own numbers cost a tenth of the time. Sweeps make such circles, so the
# searches do not end.
_COLLECTED = 200_000, 5, 2


def main() -> None:
    """The console script."""
    gc.set_threshold(*_COLLECTED)
    # Not where the shell has it ignored, as behind nohup.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from blinksim.cli.main import interrupt, run

    status = 128 + signal.SIGINT
    try:
        if ours:
            signal.signal(signal.SIGINT, interrupt)
        status = run()
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:  # In the moment before or after `run`, which sees to all others.
        pass
    sys.exit(status)


if __name__ == "__main__":
    main()
