"""Runs `report` and opens its pages in headless Chromium."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.bench import synthetic_run

REPORT = pathlib.Path("bench/report").resolve()
HOSTILE = "</script><script>console.log('out')</script>\"'&"
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

    def test_wrong_input_is_named(self):
        empty = self.folder / "empty"
        empty.mkdir()
        for arguments, part in (
                ([], "0 were given"),
                ([self.a] * 3, "3 were given"),
                ([self.folder / "nowhere"], "there is no folder"),
                ([empty], "has no run.jsonl"),
                ([self.a, empty], "has no run.jsonl"),
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
