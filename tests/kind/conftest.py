"""The test bed is a program of its own, `python hack/kind`: its files import each other by their plain names."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "hack" / "kind"))
