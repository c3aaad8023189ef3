"""What the pictures of plot_*.py have in common. Needs matplotlib (Debian:
python3-matplotlib). Equal results give equal files."""

import matplotlib
from matplotlib import figure as figures


def plain(width, height):
    """a figure of that size in inches, whose axes have no frame at three sides"""
    matplotlib.rcParams.update({
        "svg.hashsalt": "tessera", "font.size": 9, "axes.spines.top": False,
        "axes.spines.right": False, "axes.spines.left": False})
    return figures.Figure(figsize=(width, height), layout="constrained",
                          facecolor="white")
