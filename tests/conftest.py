"""The tests import their helpers by name (`problems`) whatever folder pytest is started from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
