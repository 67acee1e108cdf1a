"""Attention gates for convolutional networks: the modules, plugging them into any CNN, training and comparing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
