"""The checks import `launch` by name, here and in the processes that it starts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
