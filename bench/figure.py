"""What the pictures of plot_*.py have in common. Needs matplotlib (Debian:
python3-matplotlib). Equal results give equal files."""

import argparse
import pathlib

import matplotlib
from matplotlib import figure as figures

_REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


def arguments(description, title=None, **paths):
    """a program's arguments: paths, by default these of the repository, and a
    title if it has a default"""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawTextHelpFormatter)
    for name, path in paths.items():
        parser.add_argument(f"--{name}", type=pathlib.Path,
                            default=_REPOSITORY / path)
    if title:
        parser.add_argument("--title", default=title)
    return parser.parse_args()


def plain(width, height):
    """a figure of that size in inches, whose axes have no frame at three sides"""
    matplotlib.rcParams.update({
        "svg.hashsalt": "tessera", "font.size": 9, "axes.spines.top": False,
        "axes.spines.right": False, "axes.spines.left": False})
    return figures.Figure(figsize=(width, height), layout="constrained",
                          facecolor="white")


def save(picture, path, creator):
    picture.savefig(path, metadata={"Date": None, "Creator": creator})
    print(path)
