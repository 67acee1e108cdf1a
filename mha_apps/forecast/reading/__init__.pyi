from .options import ReadOptions as ReadOptions
from .plot import is_drawn as is_drawn
from .reader import inspect as inspect
from .reader import read_sensor_csv as read_sensor_csv
from .report import ReadingReport as ReadingReport
