"""tessera_test: a GoogleTest as a library and as a program.

The library (NAME_lib) lets //tests:gpu_tests link all tests with a GPU part
into one binary, which runs on machines without Bazel.
"""

load("@libtorch//:cuda.bzl", "if_cuda")
load("//tools/torch:torch_cc.bzl", "torch_cc_library")

# The env of tests that train toy models. With those a second thread makes tests
# slower, up to a hundred times on a busy machine.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

def tessera_test(name, srcs, deps = [], data = [], tags = [], torch = True, size = "small", **kwargs):
    """A test. Without a GPU, its suites named Gpu* are skipped with the reason.

    Args:
      name: the test target; NAME_lib is the library.
      srcs: test sources without main().
      deps: dependencies; GoogleTest is added.
      data: files read at run time.
      tags: "gpu" if a suite needs a GPU, "gpu-multi" if it needs two.
      torch: whether the sources include LibTorch.
      size: Bazel's test size.
      **kwargs: other arguments of the cc_test.
    """
    library = torch_cc_library if torch else native.cc_library
    library(
        name = name + "_lib",
        testonly = True,
        srcs = srcs,
        data = data,
        tags = tags,
        # A quarter less time to compile than with -O2. What tests do often is
        # in libraries.
        copts = ["-Og"],
        deps = deps + ["@system//:gtest"] + ([] if torch else ["@system//:absl"]),
        alwayslink = True,
        visibility = ["//tests:__subpackages__"],
    )
    native.cc_test(
        name = name,
        size = size,
        tags = tags,
        deps = [":" + name + "_lib", "//tests/testing:main"],
        **kwargs
    )

def cuda_test(name, **kwargs):
    """A tessera_test of code that only CUDA builds have.

    Args:
      name: the test target.
      **kwargs: arguments of tessera_test().
    """
    if if_cuda([name]):
        tessera_test(name = name, **kwargs)
