"""What is not text in a text that was meant for a terminal."""

import re

ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and their like, up to their end
    r"|[ -/]*[0-~])"
)
