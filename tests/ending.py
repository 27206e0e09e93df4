"""Commands in forks of one process that has imported all: how each ended (`python -m tests.ending`).

A case is [argv, streams that are closed or full, seconds until a signal or null, its number].
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path


def ended(argv: list[str], how: dict[str, str], after: float | None, number: int) -> list[object]:
    """Exit code (-n: a signal's own), standard output and error, of one command."""
    kept = {n: Path(f".{n}").open("w+b") for n in ("stdout", "stderr")}  # noqa: SIM115 - closed below
    if not (pid := os.fork()):
        for fd, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(kept[name].fileno(), fd)
            if how.get(name) == "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), fd)
            if how.get(name) == "gone":
                read, write = os.pipe()
                os.close(read)
                os.dup2(write, fd)
            if how.get(name) == "closed":
                os.close(fd)
        for fd, name in ((1, "stdout"), (2, "stderr")):
            shut = how.get(name) == "closed"
            setattr(sys, name, None if shut else io.TextIOWrapper(io.FileIO(fd, "w", closefd=False)))
        if how.get("folder") == "gone":
            os.mkdir("gone")
            os.chdir("gone")
            os.rmdir("../gone")
        sys.argv = ["-m", *argv]
        from probes import __main__, cli
        from probes.core import ends

        ends.early()
        sys.exit(cli.main(argv[0], argv[1:]) if argv[0] in ("l1", "l2", "l3") else __main__.main(argv))
    if after is not None:
        time.sleep(after)
        os.kill(pid, number)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = []
    for name in ("stdout", "stderr"):
        kept[name].seek(0)
        said.append(kept[name].read().decode(errors="replace"))
        kept[name].close()
    return [code, *said]


if __name__ == "__main__":
    import probes.commands.replay
    import probes.engine.run  # noqa: F401 - both for the forks

    print(json.dumps([ended(*case) for case in json.load(sys.stdin)]))
