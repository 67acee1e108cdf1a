"""What the image applications share: sources, augmentation on batches, and the evaluation of a classifier."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
