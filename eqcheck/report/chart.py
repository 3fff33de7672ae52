"""The evidence of sampled tokens, as the points of a line chart."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eqcheck.result.findings import Evidence

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 240, 64, 150, 14, 34
_LEAST, _MOST = -320.0, 10_000.0
_APART = 15  # pixels between two labels


@dataclass(frozen=True)
class ThresholdLine:
    """A horizontal line at a height, with its label beside it (at ``text``, so that labels do not touch)."""

    y: float
    text: float
    label: str
    kind: str


@dataclass(frozen=True)
class Chart:
    """The line's points in the picture, the marks at its thresholds, the labels of the axes."""

    points: str
    marks: tuple[ThresholdLine, ...]
    x_ticks: tuple[tuple[float, int], ...]
    end: tuple[float, float]
    said: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM

    @classmethod
    def of(cls, evidence: Evidence) -> Chart:
        """The chart of what the evidence was over tokens.

        >>> chart = Chart.of(Evidence(20, 1e2, 1e7, 1e6, "violation", (), {}, ((0, 0.0), (10, 7.0), (20, 2.0))))
        >>> [mark.label for mark in chart.marks]
        ['10⁶ violation', '10³ in doubt', '1 at the start']
        >>> chart.said
        'Evidence over 20 tokens: at most 10⁷, in the end 10².'
        """
        course = sorted((max(0, tokens), min(max(_LEAST, log), _MOST)) for tokens, log in evidence.course)
        most_x = max(1, course[-1][0])
        top = max(7.0, *(log for _, log in course)) * 1.04
        low = min(-1.0, *(log for _, log in course))

        def place(tokens: float, log: float) -> tuple[float, float]:
            x = LEFT + (WIDTH - LEFT - RIGHT) * tokens / most_x
            y = TOP + (HEIGHT - TOP - BOTTOM) * (top - log) / (top - low)
            return round(x, 1), round(y, 1)

        points = [place(tokens, log) for tokens, log in course]
        greatest, end = max(log for _, log in course), course[-1][1]
        if 0 < evidence.greatest < math.inf:  # it may lie between two points
            greatest = max(greatest, math.log10(evidence.greatest))
        return cls(
            points=" ".join(f"{x},{y}" for x, y in points),
            marks=_marks({log: place(0, log)[1] for log in (_crossing(evidence), 3.0, 0.0)}),
            x_ticks=tuple((place(most_x * n / 4, 0)[0], most_x * n // 4) for n in range(5)),
            end=points[-1],
            said=f"Evidence over {most_x} tokens: at most {ten(greatest)}, in the end {ten(end)}.",
        )


def _crossing(evidence: Evidence) -> float:
    return math.log10(evidence.threshold) if 0 < evidence.threshold < math.inf else 6.0


def _marks(heights: dict[float, float]) -> tuple[ThresholdLine, ...]:
    """The marks at these heights, from top to bottom; labels are moved so that none touches another, or the axis."""
    words = {3.0: ("in doubt", "warn"), 0.0: ("at the start", "soft")}
    lines = sorted(heights.items(), reverse=True)
    texts = [y for _, y in lines]
    for n in range(1, len(texts)):
        texts[n] = max(texts[n], texts[n - 1] + _APART)
    over = max(0.0, texts[-1] - (HEIGHT - BOTTOM + 4))
    named = [words.get(log, ("violation", "bad")) for log, _ in lines]
    return tuple(
        ThresholdLine(y, text - over, f"{ten(log)} {what}", kind)
        for (log, y), text, (what, kind) in zip(lines, texts, named, strict=True)
    )


def ten(log: float) -> str:
    """A power of ten, with its exponent raised.

    >>> ten(149.3), ten(-2), ten(0.2)
    ('10¹⁴⁹', '10⁻²', '1')
    """
    power = round(log)
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if power else "1"
