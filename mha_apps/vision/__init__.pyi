from .model import ViT as ViT
from .presets import PRESETS as PRESETS
from .recipe import VitRecipe as VitRecipe
from .train import evaluate as evaluate
from .train import load_model as load_model
from .train import train as train
