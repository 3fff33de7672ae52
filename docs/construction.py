"""The picture of `docs/checkpoints.md`: a pointer's scores, the steps that make a parity, and the residual stream.

python docs/construction.py        writes docs/pictures/construction.png; needs matplotlib
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from eqcheck.engines.construction.folder import built
from eqcheck.engines.construction.function import BITS
from eqcheck.engines.construction.pointers import ROTARY, amplitudes, plain
from eqcheck.engines.construction.weights import WIDTH, Residual, staircase

PICTURE = Path(__file__).resolve().parent / "pictures" / "construction.png"
AIM = 40
BLUE, RED, GREY = "#3949ab", "#c62828", "#9e9e9e"


def scores(distances: Any) -> Any:
    """The scores of the pointer to `AIM` at these distances."""
    cosines, sines = map(np.array, amplitudes()[plain(AIM)])
    angles = np.outer(distances, ROTARY.frequencies)
    return np.cos(angles) @ cosines + np.sin(angles) @ sines


def steps(sums: Any, heads: int) -> Any:
    """The product of signs that the MLP makes of their sum, for so many heads."""
    made = np.full(len(sums), -1.0 if heads % 4 == 0 else 1.0)
    for direction, place, weight in staircase(heads, flag=False):
        made += weight * np.clip((direction * (sums - place)) / WIDTH + 0.5, 0, 1)
    return made


def draw_pointer(axes: Any) -> None:
    distances = np.arange(0, 120)
    told = scores(distances)
    axes.vlines(distances, told.min(), told, color=GREY, linewidth=1)
    for distance, color, text in ((AIM, BLUE, "read first"), (0, RED, "read if that is not there")):
        axes.plot(distance, told[distance], "o", color=color)
        axes.annotate(f"{distance}: {text}", (distance + 3, told[distance]), color=color, va="center")
    rest = np.delete(told, [0, AIM]).max()
    axes.axhline(rest, color=GREY, linestyle=":")
    axes.annotate("the next best", (117, rest + 9), color="#616161", ha="right")
    axes.set(title=f"scores of the pointer to {AIM}", xlabel="distance from query to key", ylabel="score")
    axes.set_ylim(told.min(), told.max() + 25)


def draw_parity(axes: Any) -> None:
    heads = len(built("full").function.layers[0])
    sums = np.linspace(-heads - 1.5, heads + 1.5, 2000)
    axes.plot(sums, steps(sums, heads), color=BLUE, linewidth=1)
    odd = np.arange(-heads - 1, heads + 2, 2)
    axes.plot(odd, steps(odd.astype(float), heads), "o", color=RED, markersize=4)
    axes.set(title=f"the MLP: product of {heads + 1} signs", xlabel="sum of the signs", ylabel="product")
    axes.set_yticks([-1, 1])


def draw_stream(axes: Any, layers: int) -> None:
    at, number = Residual(layers), layers
    parts = [(0, 1, "1024", RED), (1, 1, "1", RED), (2, 1, "flag", RED)]
    parts += [(at.code(layer).start, BITS, f"code {layer}", BLUE) for layer in range(number + 1)]
    parts += [(at.sums(layer).start, BITS, f"sums {layer}", GREY) for layer in range(number)]
    for start, width, text, color in parts:
        axes.barh(0, width, left=start, height=1, color=color, edgecolor="white")
        small = width == 1
        height, place = (0.9, "bottom") if small else (0, "center")
        axes.text(
            start + width / 2,
            height,
            text,
            ha="center",
            va=place,
            fontsize=8,
            color="black" if small else "white",
            rotation=90 if small else 0,
        )
    axes.set(title="the residual stream of a token: 59 of 64 features", xlim=(0, 64), ylim=(-0.6, 2.4), yticks=[])
    axes.set_frame_on(False)


def draw() -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(10, 5.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 1))
    draw_pointer(figure.add_subplot(grid[0, 0]))
    draw_parity(figure.add_subplot(grid[0, 1]))
    draw_stream(figure.add_subplot(grid[1, :]), len(built("full").function.layers))
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw()
