from .options import ReadOptions as ReadOptions
from .reader import inspect as inspect
from .reader import read_sensor_csv as read_sensor_csv
from .report import ReadingReport as ReadingReport
