"""Forecasts of sensors: a closed-form linear path, attention behind gates, and intervals that are calibrated."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
