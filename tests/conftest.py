"""The tests import `problems` by name whatever folder pytest is started from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
