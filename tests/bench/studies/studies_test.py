"""Runs every study of configs/studies/tiny on the CPU from end to end."""

import concurrent.futures
import fcntl
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest

STUDY = pathlib.Path("bench/study")
TINY = pathlib.Path("configs/studies/tiny")
FULL = pathlib.Path("configs/studies")


def run(*arguments, **variables):
    return subprocess.run(
        [STUDY, *arguments], check=False, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, universal_newlines=True,
        env={**os.environ, **variables})


def lines(folder):
    with open(folder / "results.jsonl") as file:
        return list(file)


def records(folder):
    return [json.loads(line) for line in lines(folder)]


def limit_files(size):
    """Makes writes beyond `size` bytes of a file fail, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class StudiesTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def test_every_tiny_study_runs_and_fills_its_tables(self):
        studies = sorted(TINY.glob("*.pbtxt"))
        self.assertGreater(len(studies), 10)
        # Two at a time: this test is the longest, and often the last.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            runs = list(pool.map(
                lambda study: run(f"--study={study}",
                                  f"--out={self.folder / study.stem}"),
                studies))
        for study, done in zip(studies, runs):
            with self.subTest(study=study.stem):
                out = self.folder / study.stem
                self.assertEqual(done.returncode, 0, done.stderr)
                cells = [r for r in records(out) if r["type"] == "cell"]
                self.assertTrue(cells)
                for cell in cells:
                    self.assertEqual(cell["status"], "OK", cell)
                page = (out / "README.md").read_text()
                rows = [line for line in page.splitlines()
                        if line.startswith("| ")]
                # A heading and a line for each cell, in every table.
                self.assertGreaterEqual(len(rows), 1 + len(cells), page)
                for line in page.splitlines():
                    if not line.startswith(("| ", "|--", "    ")):
                        self.assertLessEqual(len(line), 100, study.stem)
                # Figures that a CPU does not have are the exception.
                self.assertLess(page.count("n/a"), page.count(" | ") / 2, page)
                html = (out / "index.html").read_text()
                self.assertEqual(html.count("<tr>"),
                                 len(rows), study.stem)
                if study.stem == "memory_timeline":
                    for what in ("a forward pass", "a step"):
                        self.assertIn(
                            f"Memory during {what}: precision=BF16", html)

    def test_every_full_study_is_valid_and_has_a_tiny_one(self):
        full = {path.stem for path in FULL.glob("*.pbtxt")}
        self.assertEqual(full, {path.stem for path in TINY.glob("*.pbtxt")})
        for name in sorted(full):
            listed = run(f"--study={FULL / name}.pbtxt", "--list")
            self.assertEqual(listed.returncode, 0, listed.stderr)
            self.assertGreater(len(listed.stdout.splitlines()), 1)

    def check_resumes(self, study, out):
        # The last line may be unfinished.
        before = [json.loads(line) for line in lines(out)
                  if line.endswith("\n")]
        before = [r for r in before if r["type"] == "cell"]
        self.assertGreaterEqual(len(before), 1)
        again = run(f"--study={study}", f"--out={out}")
        self.assertEqual(again.returncode, 2)
        self.assertIn("--resume", again.stderr)
        resumed = run(f"--study={study}", f"--out={out}", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        after = [r for r in records(out) if r["type"] == "cell"]
        self.assertEqual(after[:len(before)], before)
        names = [json.dumps(r["cell"]) for r in after]
        self.assertEqual(len(names), len(set(names)))
        self.assertNotIn("have not run", (out / "README.md").read_text())

    def test_a_study_that_is_stopped_or_killed_resumes(self):
        study = TINY / "end_to_end.pbtxt"
        for number in (signal.SIGTERM, signal.SIGKILL):
            out = self.folder / number.name
            with subprocess.Popen(
                    [STUDY, f"--study={study}", f"--out={out}"],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                process.stdout.readline()  # a cell is done
                process.send_signal(number)
                errors = process.communicate()[1].decode()
            if number == signal.SIGTERM:
                self.assertEqual(process.returncode, 128 + number, errors)
                self.assertIn("--resume", errors)
            else:
                self.assertEqual(process.returncode, -number, errors)
            self.check_resumes(study, out)

    def test_a_full_disk_keeps_the_finished_cells(self):
        study = TINY / "end_to_end.pbtxt"
        whole = self.folder / "whole"
        self.assertEqual(run(f"--study={study}", f"--out={whole}").returncode,
                         0)
        sizes = [len(line.encode()) for line in lines(whole)]
        # Room for the study's record, a cell's, and half of another.
        room = sizes[0] + sizes[1] + sizes[2] // 2
        out = self.folder / "full"
        done = subprocess.run(
            [STUDY, f"--study={study}", f"--out={out}"], check=False,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, restore_signals=False,
            preexec_fn=lambda: limit_files(room))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("results.jsonl", done.stderr)
        self.assertIn("File too large", done.stderr)
        self.assertFalse(lines(out)[-1].endswith("\n"))
        self.check_resumes(study, out)

    def test_a_trace_beyond_its_limit_is_a_failed_cell(self):
        study = self.folder / "traced.pbtxt"
        study.write_text(f"""
            base: "{TINY.resolve()}/kernels.pbtxt"
            axis {{
              name: "room"
              choice {{ label: "enough" }}
              choice {{ label: "little" set: "observe.trace.max_records=50" }}
            }}""")
        out = self.folder / "traced"
        done = run(f"--study={study}", f"--out={out}")
        self.assertEqual(done.returncode, 0, done.stderr)
        for cell in (r for r in records(out) if r["type"] == "cell"):
            if cell["cell"]["room"] == "enough":
                self.assertEqual(cell["status"], "OK", cell)
                continue
            self.assertEqual(cell["status"], "FAILED", cell)
            self.assertIn("observe.trace.max_records=50", cell["message"])
            self.assertIn("raise it", cell["message"])
        self.assertIn("**FAILED**", (out / "README.md").read_text())

    def test_a_cell_after_one_that_does_not_fit_is_as_before(self):
        study = self.folder / "oom.pbtxt"
        study.write_text("""
            title: "t"
            config: "configs/tiny_cpu.pbtxt"
            set: "execution.mode=EAGER"
            set: "training.batch_size=4"
            set: "training.micro_batches=2"
            training { record: ALLOCATIONS }
            warmup: 1
            iterations: 1
            axis {
              name: "cell"
              choice { label: "before" }
              choice { label: "too large" set: "training.batch_size=40000000" }
              choice { label: "after" }
            }
            table { column { title: "MiB" figure: "allocations.saved.mib" } }""")
        out = self.folder / "oom"
        done = run(f"--study={study}", f"--out={out}")
        self.assertEqual(done.returncode, 0, done.stderr)
        before, large, after = [
            r for r in records(out) if r["type"] == "cell"]
        self.assertEqual(large["status"], "OOM", large)
        self.assertIn("training.batch_size", large["message"])
        for figure in ("parts", "saved", "residual"):
            self.assertEqual(before["figures"]["allocations"][figure],
                             after["figures"]["allocations"][figure])
        page = (out / "README.md").read_text()
        self.assertIn("| too large | **OOM** |", page)
        # The reason is folded like the rest.
        reason = page[page.index("- cell=too large: OOM. "):].splitlines()
        self.assertGreater(len(reason), 1)
        self.assertTrue(all(len(line) <= 100 for line in reason), reason)

    def test_a_crash_loses_only_its_cell(self):
        study = TINY / "end_to_end.pbtxt"
        out = self.folder / "crashed"
        # A sanitizer would turn the signal into an exit code.
        sanitizer = f"{os.environ.get('ASAN_OPTIONS', '')}:handle_segv=0"
        with subprocess.Popen(
                [STUDY, f"--study={study}", f"--out={out}"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=dict(os.environ, ASAN_OPTIONS=sanitizer),
                universal_newlines=True) as process:
            process.stdout.readline()
            children = pathlib.Path(
                f"/proc/{process.pid}/task/{process.pid}/children")
            # The worker is in a cell, unless it has just ended the last one.
            os.kill(int(children.read_text().split()[0]), signal.SIGSEGV)
            errors = process.communicate()[1]
            self.assertEqual(process.returncode, 0, errors)
        statuses = [r["status"] for r in records(out) if r["type"] == "cell"]
        self.assertEqual(statuses.count("CRASHED"), 1, statuses)
        self.assertEqual(statuses.count("OK"), len(statuses) - 1, statuses)
        page = (out / "README.md").read_text()
        self.assertIn("signal 11", page)
        resumed = run(f"--study={study}", f"--out={out}", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertNotIn("CRASHED", (out / "README.md").read_text())

    def test_a_histogram_counts_every_cell_and_extremes_name_theirs(self):
        out = self.folder / "histogram"
        done = run(f"--study={TINY / 'plan_accuracy.pbtxt'}", f"--out={out}")
        self.assertEqual(done.returncode, 0, done.stderr)
        cells = [r for r in records(out) if r["type"] == "cell"]
        planned = {r["figures"]["memory"]["planned_gib"]: r for r in cells}
        html = (out / "index.html").read_text()
        charts = json.loads(re.search(
            '<script id="charts" type="application/json">(.*?)</script>',
            html).group(1))
        # A CPU has no plan errors, hence one chart.
        self.assertEqual(len(charts), 1)
        bins = [round(gib / 0.001) for gib in planned]
        self.assertEqual([float(c) for c in charts[0]["categories"]], [
            round(0.001 * b, 3) for b in range(min(bins), max(bins) + 1)])
        self.assertEqual(sum(charts[0]["series"][0]["values"]), len(cells))
        page = (out / "README.md").read_text()
        for what, gib in [("lowest", min(planned)), ("highest", max(planned))]:
            line = re.search(rf"\| planned, GiB \| {what} \| (.*) \| (.*) \|",
                             page)
            self.assertEqual(line.group(2), f"{gib:.3f}")
            self.assertIn(f"run={planned[gib]['cell']['run']} ", line.group(1))

    def test_a_folder_of_something_else_is_refused(self):
        study = TINY / "accumulation.pbtxt"
        for name in ["README.md", "index.html", "run.jsonl"]:
            with self.subTest(name=name):
                out = self.folder / name
                out.mkdir()
                (out / name).write_text("mine")
                done = run(f"--study={study}", f"--out={out}")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"{out} has a {name} that is no study's",
                              done.stderr)
                self.assertEqual([p.name for p in out.iterdir()], [name])
                self.assertEqual((out / name).read_text(), "mine")

    def test_two_studies_do_not_share_a_folder(self):
        study = TINY / "accumulation.pbtxt"
        out = self.folder / "shared"
        self.assertEqual(run(f"--study={study}", f"--out={out}").returncode, 0)
        before = lines(out)
        with open(out / "results.jsonl") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            done = run(f"--study={study}", f"--out={out}", "--resume")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(f"{out}/results.jsonl is written by another process",
                      done.stderr)
        self.assertEqual(lines(out), before)

    def test_a_foreign_line_is_named(self):
        study = TINY / "accumulation.pbtxt"
        out = self.folder / "foreign"
        self.assertEqual(run(f"--study={study}", f"--out={out}").returncode, 0)
        good = lines(out)
        cell = json.loads(good[1])
        for line in ["null", "5", "[]", "{}", "no JSON", '{"type":"cell"}',
                     json.dumps({**cell, "cell": {"sum": 1}}),
                     json.dumps({**cell, "status": 1}),
                     json.dumps({**cell, "figures": None})]:
            with self.subTest(line=line):
                text = "".join([good[0], line + "\n", *good[1:]])
                (out / "results.jsonl").write_text(text)
                done = run(f"--study={study}", f"--out={out}", "--resume")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"{out}/results.jsonl:2: is no record",
                              done.stderr)
                self.assertIn("remove the line", done.stderr)
                self.assertEqual((out / "results.jsonl").read_text(), text)

    def test_a_study_resumes_if_only_its_page_has_changed(self):
        study = self.folder / "s.pbtxt"
        text = f'base: "{TINY.resolve()}/accumulation.pbtxt"\n'
        study.write_text(text)
        out = self.folder / "page"
        self.assertEqual(run(f"--study={study}", f"--out={out}").returncode, 0)
        before = lines(out)
        study.write_text(text + 'title: "Another"')
        done = run(f"--study={study}", f"--out={out}", "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(lines(out)[:-1], before)
        self.assertIn('title: "Another"', records(out)[-1]["study"])
        self.assertIn("# Another\n", (out / "README.md").read_text())
        study.write_text(text + "iterations: 3")
        done = run(f"--study={study}", f"--out={out}", "--resume")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("has changed since", done.stderr)

    @unittest.skipUnless(shutil.which("git"), "needs git")
    def test_cells_of_another_build_or_config_are_measured_again(self):
        tree = self.folder / "tree"
        tree.mkdir()
        (tree / "source").write_text("a")
        for words in (["init", "-q"], ["add", "."],
                      ["-c", "user.name=n", "-c", "user.email=e@x", "commit",
                       "-q", "-m", "m"]):
            subprocess.run(["git", "-C", tree, *words], check=True)
        study = self.folder / "s.pbtxt"
        config = self.folder / "c.pbtxt"
        study.write_text(f'''
            title: "t" training {{}} config: "{config}"
            warmup: 1 iterations: 1
            axis {{ name: "batch" field: "training.batch_size"
                    value: "1" value: "2" }}''')
        tiny = pathlib.Path("configs/tiny_cpu.pbtxt").resolve()
        config.write_text(f'base: "{tiny}" model {{ num_layers: 1 }}')
        out = self.folder / "builds"

        def measured_again():
            before = len(lines(out)) if out.exists() else 0
            done = run(f"--study={study}", f"--out={out}", "--resume",
                       BUILD_WORKSPACE_DIRECTORY=str(tree))
            self.assertEqual(done.returncode, 0, done.stderr)
            return len(lines(out)) - before, done.stderr

        self.assertEqual(measured_again()[0], 3)
        build = records(out)[1]["build"]
        self.assertRegex(build, r"^tessera \S+ \([0-9a-f]{10}\), ")
        self.assertEqual(measured_again()[0], 0)
        (tree / "source").write_text("b")
        count, said = measured_again()
        self.assertEqual(count, 2)
        self.assertIn(f"measures again: 2 cells are of {build}, not of ", said)
        self.assertRegex(records(out)[-1]["build"],
                         r" \([0-9a-f]{10}\+[0-9a-f]{8}\), ")
        self.assertEqual(measured_again()[0], 0)
        # A worker does not look at a tree that has changed since the start.
        started = run(f"--study={study}", f"--out={self.folder / 'started'}",
                      BUILD_WORKSPACE_DIRECTORY=str(tree),
                      TESSERA_COMMIT="0123456789")
        self.assertEqual(started.returncode, 0, started.stderr)
        for record in records(self.folder / "started"):
            self.assertIn(" (0123456789), ", record["build"])
        config.write_text(f'base: "{tiny}" model {{ num_layers: 2 }}')
        count, said = measured_again()
        self.assertEqual(count, 2)
        self.assertIn("the config of 2 cells has changed", said)

    def test_cells_of_an_earlier_build_are_noted(self):
        study = TINY / "accumulation.pbtxt"
        out = self.folder / "mixed"

        def page_of(commit, *options):
            done = run(f"--study={study}", f"--out={out}", *options,
                       TESSERA_COMMIT=commit)
            self.assertEqual(done.returncode, 0, done.stderr)
            for name in ("README.md", "index.html"):
                yield (out / name).read_text()
            yield done.stderr

        note = "Cells of another device or build"
        for text in page_of("0123456789"):
            self.assertNotIn(note, text)
        cells = [record["cell"] for record in records(out)[1:]]
        axis, label = next(iter(cells[0].items()))
        page, html, said = page_of("9876543210", "--resume",
                                   f"--filter={axis}={label}")
        count = sum(cell[axis] == label for cell in cells)
        self.assertIn(f"measures again: {count} cells", said)
        noted = " ".join(page[page.index(note):].split())
        for text in (noted, html[html.index(note):]):
            self.assertIn("(0123456789), ", text)
            self.assertNotIn("(9876543210), ", text)
            for cell in cells:
                name = " ".join("=".join(pair) for pair in cell.items())
                self.assertEqual(name in text, cell[axis] != label, name)
        page, html, _ = page_of("9876543210", "--resume")
        self.assertNotIn(note, page + html)

    def test_cells_of_another_device_are_measured_again(self):
        study = TINY / "accumulation.pbtxt"
        out = self.folder / "devices"

        def measured(threads, *options):
            done = run(f"--study={study}", f"--out={out}", *options,
                       OMP_NUM_THREADS=threads, CUDA_VISIBLE_DEVICES="",
                       TESSERA_COMMIT="0123456789")
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stderr

        measured("1")
        cells = [record["cell"] for record in records(out)[1:]]
        self.assertNotIn("measures again", measured("1", "--resume"))
        axis, label = next(iter(cells[0].items()))
        count = sum(cell[axis] == label for cell in cells)
        self.assertIn(f"measures again: {count} cells are of CPU, 1 thread, "
                      "not of CPU, 2 threads",
                      measured("2", "--resume", f"--filter={axis}={label}"))
        page = " ".join((out / "README.md").read_text().split())
        noted = page[page.index("Cells of another device"):]
        self.assertIn("- CPU, 1 thread; tessera ", noted)
        self.assertNotIn("2 threads", noted)
        measured("2", "--resume")
        page = (out / "README.md").read_text()
        self.assertNotIn("Cells of another device", page)

    def test_a_program_without_a_commit_says_so(self):
        study = TINY / "accumulation.pbtxt"
        for commit, lines_of_it in ("", 1), ("0123456789", 0):
            done = run(f"--study={study}", f"--out={self.folder / commit}/out",
                       TESSERA_COMMIT=commit)
            self.assertEqual(done.returncode, 0, done.stderr)
            said = [line for line in done.stderr.splitlines()
                    if "no commit" in line]
            self.assertEqual(len(said), lines_of_it, done.stderr)
            for line in said:
                self.assertIn("a bundle", line)
                self.assertIn("bazel run //bench:study", line)

    def test_a_cell_without_its_gpu_is_tried_again(self):
        study = self.folder / "s.pbtxt"
        study.write_text('''
            title: "t" training {} config: "configs/tiny_cpu.pbtxt"
            axis { name: "device" field: "training.device" value: "CUDA" }''')
        out = self.folder / "gpu"
        for tries in (1, 2):
            run(f"--study={study}", f"--out={out}", "--resume",
                CUDA_VISIBLE_DEVICES="")
            cells = records(out)[1:]
            self.assertEqual([c["status"] for c in cells], ["FAILED"] * tries)
        self.assertIn("CUDA", cells[0]["message"])

    def test_text_of_a_study_is_plain(self):
        study = self.folder / "plain.pbtxt"
        hostile = "<img src=x>|*b*`c`[d](e)\\\\f&lt;_g_ h__i #$~"
        study.write_text(f'''
            title: "T{hostile}"
            accumulation {{}}
            axis {{
              name: "A{hostile}"
              choice {{ label: "L{hostile}" }}
            }}
            table {{
              title: "H{hostile}"
              column {{ title: "C{hostile}" figure: "value" }}
            }}''')
        out = self.folder / "plain"
        done = run(f"--study={study}", f"--out={out}")
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = (r"&lt;img src=x>\|\*b\*\`c\`\[d\](e)\\f&amp;lt;"
                 r"\_g\_ h__i \#\$\~")
        page = (out / "README.md").read_text()
        for start in ("# T", "### H", "| A", "| C", "| L"):
            self.assertIn(start + shown, page)

    def test_figures_that_are_spread_out_are_marked(self):
        study = TINY / "end_to_end.pbtxt"
        out = self.folder / "spread"
        self.assertEqual(run(f"--study={study}", f"--out={out}").returncode, 0)
        header, *cells = records(out)
        for i, cell in enumerate(cells):
            for name in ("forward_ms", "forward_backward_ms", "step_ms"):
                figures = cell["figures"][name]
                share = 0.11 if i == 0 and name == "step_ms" else 0.09
                figures["std"] = share * figures["median"]
        (out / "results.jsonl").write_text("".join(
            json.dumps(record) + "\n" for record in [header, *cells]))
        done = run(f"--study={study}", f"--out={out}", "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        note = "† The values behind this figure are spread out"
        page = (out / "README.md").read_text()
        self.assertEqual(page.count(note), 1)
        # The step's time, tokens/s and TFLOP/s; a CPU has no MFU.
        marked = [line for line in page.splitlines() if " † |" in line]
        self.assertEqual(len(marked), 1, page)
        self.assertEqual(marked[0].count(" † |"), 3, marked)
        html = (out / "index.html").read_text()
        self.assertEqual(html.count(note), 1)
        self.assertEqual(html.count(" †</td>"), 3)

    def test_a_missing_config_is_one_line(self):
        study = self.folder / "missing.pbtxt"
        study.write_text("""
            title: "t" training {} config: "configs/nowhere.pbtxt"
            axis { name: "batch" field: "training.batch_size"
                   value: "1" value: "2" value: "3" value: "4" }""")
        done = run(f"--study={study}", f"--out={self.folder / 'out'}")
        self.assertEqual(done.returncode, 2)
        self.assertIn("batch=1 and 3 more cells: ", done.stderr)
        self.assertIn("nowhere.pbtxt", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertLess(len(done.stderr), 1000)

    def test_the_readers_text_stays(self):
        study = TINY / "accumulation.pbtxt"
        out = self.folder / "reading"
        self.assertEqual(run(f"--study={study}", f"--out={out}").returncode, 0)
        page = out / "README.md"
        page.write_text(page.read_text() + "\n## Reading\n\nMine.\n")
        run(f"--study={study}", f"--out={out}", "--resume")
        self.assertIn("\n\n## Reading\n\nMine.\n\n## Tables\n\n|", page.read_text())
        self.assertEqual(page.read_text().count("## Reading"), 1)

    def test_wrong_input_is_named(self):
        bad = self.folder / "bad.pbtxt"
        for text, parts in {
            "title: 3": ["bad.pbtxt:1:8"],
            'title: "t"': ["axis: is required", "training: say what"],
            'title: "t" accumulation {} axis { name: "a" field: "sum" '
            'value: "FP99" }': ["a=FP99", "FP99"],
            'title: "t" training {} config: "configs/tiny_cpu.pbtxt" axis { '
            'name: "c" field: "model.context_length" value: "0" }':
                ["c=0", "model.context_length"],
            'title: "t" accumulation {} axis { name: "a" field: "sum" '
            'value: "FP32" } plot { x: "b" y: "value" }':
                ["plot[0].x", "'b' is no axis"],
            'title: "t" accumulation {} axis { name: "a" field: "sum" '
            'value: "FP32" } plot { y: "value" histogram_bin: 0 }':
                ["plot[0].histogram_bin: must be > 0"],
            'title: "t" accumulation {} axis { name: "a" field: "sum" '
            'value: "FP32" value: "BF16" } table { '
            'column { title: "c" figure: "value" relative_to: "a" } '
            'column { title: "d" figure: "value" relative_to: "b=FP32" } '
            'column { title: "e" figure: "value" relative_to: "a=FP64" } '
            'column { title: "f" figure: "value" relative_to: "a=FP32," } }':
                ["column[0].relative_to: 'a' is not AXIS=VALUE of this study; "
                 "its axes are a",
                 "column[1].relative_to: 'b=FP32' is not",
                 "column[2].relative_to: 'a=FP64' is not AXIS=VALUE of this "
                 "study; a has FP32, BF16",
                 "column[3].relative_to: '' is not"],
            'title: "t" accumulation {} axis { name: "a" field: "sum" '
            'value: "FP32" } time_limit_s: 0 min_iterations: 0':
                ["time_limit_s: must be > 0; is 0",
                 "min_iterations: must be >= 1; is 0"],
            'title: "t" training { record: [COUNTERS, START_UP] } '
            'fresh_processes: true axis { name: "a" field: "model.d_model" '
            'value: "64" }':
                ["training.record: COUNTERS cannot be recorded with START_UP"],
            'title: "t" training { record: COUNTERS } axis { '
            'name: "a" field: "model.d_model" value: "64" }':
                ["fresh_processes: must be true to record COUNTERS"],
            'base: "nowhere.pbtxt"': ["bad.pbtxt:1:1: base: there is no study"],
            'base: "bad.pbtxt"': ["is a study its own base?"],
            f'base: "{TINY.resolve()}/phases.pbtxt" warmup: -1\n'
            'axis { name: "context" value: "16" }': [
                # The second axis of the base is the first of this file.
                "bad.pbtxt:2:1: axis[1]", "bad.pbtxt:1:"],
        }.items():
            with self.subTest(text=text):
                bad.write_text(text)
                done = run(f"--study={bad}", f"--out={self.folder / 'bad'}")
                self.assertEqual(done.returncode, 2)
                for part in parts:
                    self.assertIn(part, done.stderr)
        study = TINY / "accumulation.pbtxt"
        for flag in ["--filter=sum=FP99", "--filter=nothing=1",
                     "--out=/proc/no"]:
            done = run(f"--study={study}", flag)
            self.assertEqual(done.returncode, 2, done.stderr)

    def test_a_filter_takes_values_and_a_value_with_a_comma(self):
        study = FULL / "oom_boundary.pbtxt"
        for value, cells in [("NAIVE,COMPILED_FUSED", 16),
                             ("FLASH_CUDA, 2048 x 16", 8)]:
            done = run(f"--study={study}", f"--filter=backend={value}",
                       "--list")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(done.stdout.splitlines()), cells)


if __name__ == "__main__":
    unittest.main()
