"""Runs `report` and opens its pages in headless Chromium."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.bench import synthetic_run

REPORT = pathlib.Path("bench/report").resolve()
HOSTILE = "</script><script>console.log('out')</script>\"'&"
STUDY = [
    {"type": "study", "name": "sums", "build": "b", "study": """
         title: "Sums of a hundred" accumulation {}
         axis { name: "terms" field: "terms" value: "1" value: "2" }
         table { column { title: "error" figure: "error" } }
         plot { title: "The error" x: "terms" y: "error" }"""},
    {"type": "cell", "cell": {"terms": "1"}, "status": "OK", "device": "CPU",
     "build": "b", "figures": {"error": 0.25}}]
# Counts what the page has drawn; its security policy allows no other script.
PROBE = """<script>
const empty = [...document.querySelectorAll("canvas")].filter(canvas => {
  const pixels = canvas.getContext("2d").getImageData(
      0, 0, canvas.width, canvas.height).data;
  return !pixels.some(value => value !== 0);
});
// Columns of a comparison that say what differs, but need a scroll to be seen.
const hidden = [...document.querySelectorAll("th")].filter(
    head => ["figure", "B / A", "noise"].includes(head.textContent) &&
        head.getBoundingClientRect().right >
            head.closest(".table").getBoundingClientRect().right + 1);
console.log(`probe: ${drawn.length} charts, ${empty.length} empty, ` +
            `${hidden.length} hidden, width ` +
            `${document.documentElement.scrollWidth} of ${innerWidth}`);
</script></body>"""
# The browser's window has at least 500 pixels.
FRAME = '<iframe src="{}" width="{}" height="4000"></iframe>'


def report(*arguments):
    return subprocess.run(
        [REPORT, *arguments], check=False, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, universal_newlines=True)


class ReportTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.a = self.folder / "a"
        synthetic_run.write(self.a, name=HOSTILE)

    def test_writes_a_page_into_the_runs_folder(self):
        done = report(self.a)
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.a / "index.html").read_text()
        self.assertNotIn(HOSTILE, page)
        for title in ("Loss", "Throughput", "Step time by phase",
                      "Blocks at step 1000", "Memory during step 10",
                      "Saved for backward", "Largest allocations of the step",
                      "Power", "Clocks",
                      "What the trace cost", "By class of kernel", "Roofline of the ops",
                      "Longest gaps"):
            self.assertIn(title, page)
        self.assertLess(len(page), 1 << 20)

    def study(self, name, records, last=""):
        folder = self.folder / name
        folder.mkdir()
        (folder / "results.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records) +
            (last and last + "\n"))
        return folder

    def test_writes_a_studys_page_from_its_results(self):
        study = self.study("study", STUDY)
        (study / "README.md").write_text("## Reading\n")
        done = report(study)
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (study / "index.html").read_text()
        for text in ("Sums of a hundred", "The error", "0.25"):
            self.assertIn(text, page)
        self.assertEqual((study / "README.md").read_text(), "## Reading\n")
        self.assertEqual(
            report(study, f"--out={self.folder / 'page.html'}").returncode, 0)
        self.assertEqual((self.folder / "page.html").read_text(), page)

    def test_says_where_clocks_differ(self):
        figures = {"error": 0.25, "step_ms": {"mean": 10.0},
                   "step_wall_ms": 10.1, "kernels": {"wall_ms": 9.7}}
        study = self.study("clocks", [STUDY[0], {**STUDY[1], "figures": figures}])
        self.assertEqual(report(study).returncode, 0)
        page = (study / "index.html").read_text()
        self.assertIn(
            "terms=1: 10.000 ms by events, in a trace 9.700 ms (-3.0 %).", page)
        figures["kernels"]["wall_ms"] = 9.9
        study = self.study("same", [STUDY[0], {**STUDY[1], "figures": figures}])
        self.assertEqual(report(study).returncode, 0)
        self.assertNotIn("by events", (study / "index.html").read_text())

    def test_wrong_input_is_named(self):
        empty = self.folder / "empty"
        empty.mkdir()
        study = self.study("study", STUDY)
        for arguments, part in (
                ([], "0 were given"),
                ([self.a] * 3, "3 were given"),
                ([self.folder / "nowhere"], "there is no folder"),
                ([empty], "has neither run.jsonl"),
                ([self.a, empty], "has neither run.jsonl"),
                ([study, self.a], "only runs can be compared"),
                ([self.a, study], "only runs can be compared"),
                ([self.study("torn", STUDY[:1], "not JSON")],
                 "torn/results.jsonl:2: is no record of a study"),
                ([self.study("cells", STUDY[1:])],
                 "cells/results.jsonl does not begin with the study's record"),
                ([self.study("nothing", [])],
                 "nothing/results.jsonl does not begin with the study's record"),
                ([self.study("newer", [{**STUDY[0], "study": "news: 1"}])],
                 "newer/results.jsonl: study:1:1: "),
                ([self.study("untitled", [{**STUDY[0], "study": "warmup: 1"}])],
                 "untitled/results.jsonl: study: title: is required"),
                ([self.a, "--out=/proc/no.html"], "/proc/no.html"),
                ([self.a, f"--out={empty}"], "empty")):
            with self.subTest(arguments=arguments):
                done = report(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(part, done.stderr)

    @unittest.skipUnless(shutil.which("chromium"),
                         "chromium is not installed")
    def test_a_browser_draws_every_chart(self):
        b = self.folder / "b"
        synthetic_run.write(b, speed=1.1)
        bare = self.folder / "bare"
        synthetic_run.write(bare, traced=False)
        self.assertEqual(report(self.a).returncode, 0)
        self.assertEqual(report(bare).returncode, 0)
        self.assertEqual(report(self.a, b).returncode, 0)
        for page in (self.a / "index.html", bare / "index.html",
                     b / "compare.html"):
            for width in (1200, 400):
                with self.subTest(page=page.name, width=width):
                    self.check(page, width)

    def check(self, page, width):
        text = page.read_text()
        probed = page.with_name("probed.html")
        probed.write_text(text.replace("</body>", PROBE))
        frame = page.with_name("frame.html")
        frame.write_text(FRAME.format(probed.as_uri(), width))
        with tempfile.TemporaryDirectory() as profile:
            done = subprocess.run(
                ["chromium", "--headless", "--no-sandbox", "--disable-gpu",
                 f"--user-data-dir={profile}", "--window-size=1300,4000",
                 "--virtual-time-budget=5000", "--enable-logging=stderr",
                 "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom",
                 frame.as_uri()],
                check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                universal_newlines=True, timeout=120)
        # A script error or a blocked request is a message on the console, too.
        messages = re.findall(r'CONSOLE.*?\] "(.*?)", source', done.stderr)
        charts = text.count("<canvas")
        self.assertGreater(charts, 3)
        self.assertEqual(len(messages), 1, done.stderr)
        found = re.fullmatch(
            r"probe: (\d+) charts, (\d+) empty, (\d+) hidden, "
            r"width (\d+) of (\d+)",
            messages[0])
        self.assertTrue(found, messages)
        drawn, empty, hidden, needed, given = map(int, found.groups())
        self.assertEqual((drawn, empty, hidden), (charts, 0, 0))
        self.assertEqual(given, width)
        self.assertLessEqual(needed, given)


if __name__ == "__main__":
    unittest.main()
