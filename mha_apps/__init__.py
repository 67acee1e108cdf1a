"""One einops-based attention core and three applications on it: vision, forecast and cnn.

Nothing is imported here, so that ``import mha_apps.attention`` loads torch and einops only.
"""

__version__ = "0.1.0"
