"""``python -m torch_lapeig embed …``, the command ``torch-lapeig embed …``."""

from torch_lapeig.command import main

if __name__ == "__main__":
    main()
