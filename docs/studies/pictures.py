#!/usr/bin/env python3
"""Photographs a chart, or the first table, of each study's page.

usage: docs/studies/pictures.py --report=bazel-bin/bench/report [NAME...]

Writes docs/images/studies/NAME.png, and NAME_2.png of a second chart, from
docs/studies/NAME/results.jsonl with the program //bench:report and headless
Chromium (Debian: chromium). Without names: of every study there.
"""

import argparse
import pathlib
import subprocess
import tempfile

STUDIES = pathlib.Path(__file__).resolve().parent
IMAGES = STUDIES.parent / "images" / "studies"
# The charts that say most, where that is not the first: their numbers, from 0.
CHARTS = {"attention": [15], "attention_split": [1], "end_to_end": [5],
          "kernels": [2], "memory_timeline": [7, 5], "phases": [2],
          "recompute": [11], "utilisation": [5], "warm_up": [2]}

SCRIPT = """<script>
const only = document.querySelectorAll("figure")[%d] ?? document.querySelector(".table");
document.body.replaceChildren(only);
document.body.style.padding = "8px";
drawn.forEach(chart => chart.resize());
</script></body>"""


def photograph(name, report):
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "page.html"
        subprocess.run([report, STUDIES / name, f"--out={copy}"], check=True)
        page = copy.read_text()
        height = 376 if "<figure>" in page else 240
        for number, chart in enumerate(CHARTS.get(name, [0]), 1):
            image = f"{name}.png" if number == 1 else f"{name}_{number}.png"
            copy.write_text(page.replace("</body>", SCRIPT % chart))
            subprocess.run(
                ["chromium", "--headless", "--no-sandbox", "--disable-gpu",
                 "--hide-scrollbars", f"--window-size=620,{height}",
                 "--virtual-time-budget=5000",
                 f"--screenshot={IMAGES / image}", copy.as_uri()],
                check=True, stderr=subprocess.DEVNULL)


def main():
    IMAGES.mkdir(parents=True, exist_ok=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", required=True)
    parser.add_argument("names", nargs="*", default=sorted(
        path.parent.name for path in STUDIES.glob("*/results.jsonl")))
    arguments = parser.parse_args()
    for name in arguments.names:
        photograph(name, arguments.report)


if __name__ == "__main__":
    main()
