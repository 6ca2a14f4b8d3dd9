"""`python -m demo`: the page, the agent behind it and its engine, in one command."""

from __future__ import annotations

import sys

from tts_plugin.cli import main

if __name__ == "__main__":
    sys.exit(main(["call", *sys.argv[1:]]))
