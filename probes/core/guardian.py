"""Runs one command for `children.run`, in a process of its own: `guardian.py FD KEEP COMMAND...`.

The command leads a process group. The group ends with it, and it ends once FD, a pipe that the caller holds,
is closed: by the caller, or by the caller's death, of whatever kind. Where KEEP is 0, the current folder is a
scratch folder, and goes then.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

GRACE_S = 2.0
"""From the signal that asks a group to end to the one that ends it."""


NO_START = "guardian: does not start: "
"""How the one line begins that says why a command did not."""


def main() -> int:
    """The command's exit status; it is passed on where a signal ended the command."""
    pipe, keep, *command = sys.argv[1:]
    here = os.getcwd()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN, which the command would inherit
    try:
        child = subprocess.Popen(command, process_group=0)
    except OSError as error:
        print(f"{NO_START}{error.strerror}", file=sys.stderr)
        return 127

    def watch() -> None:
        os.read(int(pipe), 1)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
            time.sleep(GRACE_S)
            os.killpg(child.pid, signal.SIGKILL)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    status = child.wait()
    with suppress(ProcessLookupError):  # what the command left running
        os.killpg(child.pid, signal.SIGKILL)
    if keep == "0" and select.select([int(pipe)], [], [], 0)[0]:
        shutil.rmtree(here, ignore_errors=True)
    if status < 0:
        with suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
