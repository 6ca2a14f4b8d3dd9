"""`python -m tts_plugin.server`: the engine server alone; with --child, the way TTS() starts it."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from tts_plugin.arguments import BAD_INPUT, Parser, whole_number
from tts_plugin.config import load_settings
from tts_plugin.errors import TTSError, told
from tts_plugin.server.run import serve, serve_child

# The parent's media has the cores first: a beat of it that is late is heard, while a frame made as much later
# only stands shorter in a buffer.
CHILD_NICE = 5


def main(argv: list[str] | None = None) -> int:
    parser = Parser("python -m tts_plugin.server", description=__doc__)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML settings (default: the bundled ones)"
    )
    parser.add_argument("--child", action="store_true", help="serve the parent process, on loopback")
    parser.add_argument(
        "--port", type=whole_number(0, 65_535), help="0 takes a free one, the child's default"
    )
    chosen = parser.parse_args(argv)
    try:
        if chosen.child:
            if hasattr(os, "nice"):
                os.nice(CHILD_NICE)
            loopback = {"host": "127.0.0.1", "port": chosen.port or 0}
            serve_child(load_settings(chosen.config, server=loopback))
        else:
            given = {} if chosen.port is None else {"port": chosen.port}
            serve(load_settings(chosen.config, server=given))
    except TTSError as error:
        if chosen.child:  # the parent tells it
            print(json.dumps({"error": told(error)}), flush=True)
        else:
            print(f"tts_plugin.server: {error}", file=sys.stderr)
        return BAD_INPUT
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # a load or a synthesis that still runs on its worker's thread would hold a plain exit
    os._exit(code)
