"""python -m probes.l3"""

from __future__ import annotations

import sys

from probes import cli

if __name__ == "__main__":
    sys.exit(cli.main("l3"))
