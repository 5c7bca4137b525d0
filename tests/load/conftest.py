"""Lets the tests of this folder import its fakes: tests are no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
