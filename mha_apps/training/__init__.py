"""One training loop for the three applications, and what surrounds it: recipes, run folders, checkpoints, reports."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
