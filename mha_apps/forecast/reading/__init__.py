"""Reading sensor data: any CSV becomes a regular frame, and every row and cell of it is accounted for."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
