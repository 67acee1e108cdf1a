"""Use 2: from a sensor CSV to a forecast with intervals, and a backtest on rows that training never saw.

Without ``--data`` it is the embedded weather station. Look at the bands: how much of what came is inside them.
"""

import tempfile
from pathlib import Path

from _common import PICTURES, run, save, table

from mha_apps.forecast import ForecastRecipe, examine, train


def main(
    out: Path = PICTURES / "forecast_sensor.png", data: str = "sample", weights: Path | None = None, steps: int = 50
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        recipe = ForecastRecipe(csv=data, horizon=24, steps=steps)
        found = examine(weights or train(recipe, out=Path(folder) / "sensor"))
    table(list(found.series.columns), found.series.to_numpy().tolist())
    name, picture = next(iter(found.figures.items()))
    picture.axes[0].set_ylabel("°C" if data == "sample" else f"{name}, in the unit of the CSV")
    save(picture, out)
    metrics = found.metrics
    gain, held = metrics["skill"]["seasonal_naive"], metrics["coverage"]["80"]
    print(f"A day ahead the error is {gain:.0%} less than the seasonal naive one; the 80% intervals held {held:.0%}.")
    return {"gain": gain, "coverage": held}


if __name__ == "__main__":
    run(main, __doc__)
