from .backtest import Backtest as Backtest
from .backtest import backtest as backtest
from .backtest import examine as examine
from .model import ForecastModel as ForecastModel
from .predict import predict as predict
from .reading import read_sensor_csv as read_sensor_csv
from .recipe import ForecastRecipe as ForecastRecipe
from .trainer import train as train
