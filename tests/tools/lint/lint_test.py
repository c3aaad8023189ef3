"""Tests that each check of tools/lint complains exactly when it should."""

import pathlib
import tempfile
import unittest

from tools.lint import (format_check, function_check, layer_check, source_check,
                        test_check)


class LintTest(unittest.TestCase):

    def complaints(self, check, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check(root)

    def test_format(self):
        self.assertEqual(
            self.complaints(format_check.check, {
                "a/good.cc": "int x = 1;\n",
                "a/bad.cc": "int y = 1;\nint  x=1;\n",
            }), ["a/bad.cc:2: run clang-format -i a/bad.cc"])

    def test_only_sources_are_read(self):
        self.assertEqual(
            self.complaints(format_check.check, {
                "runs/a/x.cc": "int  x;",
                ".git/x.cc": "int  x;",
                "x.py": "int  x;",
            }), [])

    def guard(self, path, text):
        return self.complaints(source_check.check, {path: text})

    def test_header_guards(self):
        good = "// why\n#ifndef A_B_C_H_\n#define A_B_C_H_\n\n#endif  // A_B_C_H_\n"
        self.assertEqual(self.guard("a/b_c.h", good), [])
        complaint = ["a/b_d.h:1: the header guard must be A_B_D_H_"]
        self.assertEqual(self.guard("a/b_d.h", good), complaint)
        self.assertEqual(self.guard("a/b_d.h", "#pragma once\n"), complaint)
        self.assertEqual(self.guard("a/b_d.h", ""), complaint)

    def test_constructs(self):
        for line in ("#include <torch/torch.h>", "using namespace std;",
                     "// TODO: later", "kernel<<<1, 1>>>();"):
            complaints = self.guard("a/b.cc", "\n" + line + "\n")
            self.assertEqual(len(complaints), 1, line)
            self.assertTrue(complaints[0].startswith("a/b.cc:2: "), complaints)
        self.assertEqual(self.guard("a/b.cu", "kernel<<<1, 1>>>();\n"), [])
        self.assertEqual(self.guard("a/b.cc", "// TODO(ada): later\n"), [])

    def test_configs_end_in_their_own_files(self):
        for include in ('#include "a/x_config.h"', '#include "a/x_config.pb.h"'):
            self.assertEqual(len(self.guard("framework/a/b.cc", include)), 1)
            self.assertEqual(self.guard("framework/a/x_config.cc", include), [])
            self.assertEqual(self.guard("trainers/a/b.cc", include), [])

    def test_device_code_stays_clear_of_host_headers(self):
        header = "#ifndef A_B_H_\n#define A_B_H_\n{}\n#endif  // A_B_H_\n"
        for include in ('#include "ATen/ATen.h"', "#include <c10/x.h>",
                        '#include "a/config.pb.h"'):
            self.assertEqual(len(self.guard("a/b.cu", include)), 1)
            self.assertEqual(len(self.guard("a/b.cc", include)), 0)
            through = self.complaints(source_check.check, {
                "a/b.h": header.format(include),
                "a/k.cu": '#include "a/b.h"\n',
            })
            self.assertEqual(len(through), 1)
            self.assertTrue(through[0].startswith("a/b.h:3: "), through)

    def test_width_of_protos(self):
        fits = "// " + "é" * 97 + "\n"
        self.assertEqual(self.guard("a/b.proto", fits), [])
        self.assertEqual(self.guard("a/b.proto", fits + "/" + fits),
                         ["a/b.proto:2: 101 columns; at most 100"])

    def functions(self, path, before, lines, after):
        text = before + "  x = 1;\n" * lines + after
        return self.complaints(function_check.check, {path: text})

    def test_length_of_functions(self):
        for path, before, after in (
                ("a/b.cc", "int F(int x) {\n", "}\n"),
                ("a/b.cu", "template <int N>\n__global__ void\n"
                 "__launch_bounds__(N)\n    F(\n        int x) {\n", "}\n"),
                ("a/b.h", "namespace a {\nclass B {\n public:\n"
                 "  B() : c_(0) {}\n\n  void F(const C& c) const {\n",
                 "  }\n};\n}\n"),
                ("a/b.cc", "C::F(int x)\n    : x_(x),\n      y_(x) {\n", "}\n"),
                ("a/b.py", "def F(x):\n", "  return x\n")):
            fits = 49 if path.endswith(".py") else 50
            self.assertEqual(self.functions(path, before, fits, after), [])
            complaints = self.functions(path, before, fits + 1, after)
            self.assertEqual(len(complaints), 1, before)
            self.assertRegex(complaints[0],
                             r"^a/b\.\w+:\d+: F has 51 lines; at most 50")

    def test_long_blocks_that_are_no_functions(self):
        for before in ("namespace a {\n", "struct A {\n", "enum class A {\n",
                       "constexpr int kA[] = {\n",
                       'constexpr char kA[] = R"(\nvoid F() {\n'):
            after = ')";\n' if "R" in before else "};\n"
            self.assertEqual(self.functions("a/b.cc", before, 60, after), [])
        self.assertEqual(
            self.functions("tests/a/b_test.cc", "TEST(A, B) {\n", 60, "}\n"),
            [])

    def test_tests_mirror_sources(self):
        sources = {"a/b/c.cc": "", "a/d.cc": "", "a/e/d.cc": ""}
        for test, complaint in (
                ("a/b/c_test.cc", None),
                ("a/d_test.cc", None),
                ("a/x_test.cc", None),
                ("build/x_test.py", None),
                ("a/c_test.cc", "move it to tests/a/b, as its source is in "),
                ("f/d_test.cc", "there is no folder f; move it to ")):
            complaints = self.complaints(test_check.check,
                                         sources | {"tests/" + test: ""})
            self.assertEqual(len(complaints), 0 if complaint is None else 1,
                             complaints)
            if complaint is not None:
                self.assertIn(f"tests/{test}:1: {complaint}", complaints[0])

    def test_length_of_tests(self):
        for lines, complaints in ((750, 0), (751, 1)):
            self.assertEqual(
                len(self.complaints(test_check.check, {
                    "a/b.cc": "",
                    "tests/a/b_test.cc": "\n" * lines,
                })), complaints)

    def layers(self, package, deps):
        return self.complaints(layer_check.check, {
            f"{package}/BUILD.bazel": f'cc_library(name = "x", deps = {deps})',
        })

    def test_layers(self):
        for package, deps in (
                ("models", '[":y", "//models:z", "@system//:absl"]'),
                ("models", '["//framework/ops:linear", "//tools/x:y"]'),
                ("attention_backends/naive", '["//attention_backends:op"]'),
                ("trainers", '["//models"]'),
                ("tools/x", '["//trainers:y"]')):
            self.assertEqual(self.layers(package, deps), [])
        for package, deps in (
                ("framework/base", '["//framework/params:store"]'),
                ("framework/data", '["//framework/optim"]'),
                ("framework/ops", '["//framework/base:x"] + '
                 'if_cuda(["//models:y"])'),
                ("models", '["//tests/testing:main"]')):
            self.assertEqual(len(self.layers(package, deps)), 1, deps)
        self.assertEqual(
            self.layers("framework/data", '["//framework/optim"]'),
            ["framework/data/BUILD.bazel:1: framework/data may not depend on "
             "framework/optim: //framework/optim"])

    def test_build_file_that_does_not_parse(self):
        complaints = self.complaints(
            layer_check.check, {"models/BUILD.bazel": "load() load()\n"})
        self.assertEqual(len(complaints), 1)


if __name__ == "__main__":
    unittest.main()
