"""kernel_family: the BUILD targets of one family of attention kernels."""

load("@libtorch//:cuda.bzl", "if_cuda")
load("//tools/cuda:cuda_library.bzl", "PORTABLE_AND_HOPPER", "cuda_library")

# Head dims with their own kernels, in ascending order; others run in the next
# one up. The sources see a family's list as HeadDims in its head_dims.h.
HEAD_DIMS = {
    "portable": [32, 64, 80, 96, 128, 192, 256],
    "fp32": [32, 64, 96, 128, 192, 256],
    "hopper": [64, 80, 96, 128],
}

# The same for kernels with a soft cap of scores, SoftCapHeadDims in head_dims.h.
# They are separate files, so that those without a cap stay as they are: 22, which
# take up to 10 s of a core each and add 2.3 MB to the 6.6 MB of
# libtessera_flash_kernels.so. All head dims would be 50 files. Few models have a
# cap, most with head dims 128 and 256 (Gemma 2, Grok-1); others waste up to half
# of the columns.
SOFT_CAP_HEAD_DIMS = {
    "portable": [64, 128, 256],
    "fp32": [64, 128, 256],
    "hopper": [],
}

def head_dims(family, element, soft_cap):
    """The head dims for which a family's kernels of an element are compiled."""
    all_dims = (SOFT_CAP_HEAD_DIMS if soft_cap else HEAD_DIMS)[family]
    if family == "portable" and element == "Float":
        return [d for d in all_dims if d <= 128]  # kLargestTf32HeadDim
    return all_dims

_EMULATION = "//tests/attention_backends/flash_cuda/emulation:__pkg__"

_HEAD_DIMS_H = """
#ifndef {guard}
#define {guard}

#include "attention_backends/flash_cuda/with_head_dim.h"

namespace tessera::flash::{name} {{

using HeadDims = HeadDimList<{head_dims}>;
using SoftCapHeadDims = HeadDimList<{soft_cap_head_dims}>;

}}  // namespace tessera::flash::{name}

#endif  // {guard}
"""

def kernel_family(name, layout, elements, copts = [], deps = []):
    """Targets for forward.cu and backward.cu of this folder.

    `NAME_kernels` holds all kernels, `interface` declares how to call them,
    `layout` has their sizes and index arithmetic, and `kernel_sources` is what
    tests include to run the kernels on a CPU.

    Args:
      name: portable, fp32 or hopper.
      layout: headers in plain C++.
      elements: the names of FloatType that the sources are compiled for, and
        the gencode of each, passed to cuda_library.
      copts: passed to cuda_library.
      deps: other libraries that the sources include.
    """
    native.genrule(
        name = "head_dims",
        outs = ["head_dims.h"],
        cmd = "cat > $@ <<'END'{}END".format(_HEAD_DIMS_H.format(
            guard = "ATTENTION_BACKENDS_FLASH_CUDA_{}_HEAD_DIMS_H_".format(name.upper()),
            head_dims = ", ".join([str(d) for d in HEAD_DIMS[name]]),
            soft_cap_head_dims = ", ".join([str(d) for d in SOFT_CAP_HEAD_DIMS[name]]),
            name = name,
        )),
    )
    native.cc_library(
        name = "layout",
        hdrs = layout + ["head_dims.h"],
        visibility = [
            "//attention_backends/flash_cuda:__subpackages__",
            "//tests/attention_backends/flash_cuda:__subpackages__",
        ],
        deps = [
            "//attention_backends:key_range",
            "//attention_backends/flash_cuda:flash_params",
            "//attention_backends/flash_cuda:with_head_dim",
            "//framework/cuda:host_device",
        ],
    )
    native.cc_library(
        name = "kernel_sources",
        textual_hdrs = native.glob(
            ["*.cu", "*.cuh", "*.h"],
            exclude = layout,
        ),
        visibility = [_EMULATION],
        deps = [
            ":layout",
            "//attention_backends/flash_cuda:device",
        ],
    )

    # One library per kernel, so that they compile in parallel.
    kernels = []
    for direction, other in [("forward", "backward"), ("backward", "forward")]:
        for element, gencode in elements.items():
            for head_dim, soft_cap in (
                [(d, False) for d in head_dims(name, element, False)] +
                [(d, True) for d in head_dims(name, element, True)]
            ):
                kernel = "_".join([direction, element.lower(), str(head_dim)])
                if soft_cap:
                    kernel += "_soft_cap"
                cuda_library(
                    name = kernel,
                    srcs = [direction + ".cu"],
                    hdrs = native.glob(["*.cuh"], exclude = [other + "*"]) + ["launch.h"],
                    copts = copts + [
                        "-DTESSERA_ELEMENT=k" + element,
                        "-DTESSERA_HEAD_DIM={}".format(head_dim),
                        "-DTESSERA_SOFT_CAP={}".format("true" if soft_cap else "false"),
                    ],
                    # Compute capability 9.0 runs all of these with a cap.
                    gencode = PORTABLE_AND_HOPPER if soft_cap else gencode,
                    deps = [
                        ":layout",
                        "//attention_backends/flash_cuda:device",
                    ] + deps,
                )
                kernels.append(":" + kernel)

    native.cc_library(
        name = "interface",
        hdrs = if_cuda([name + "_kernels.h"]),
        deps = ["//attention_backends/flash_cuda:flash_params"] +
               if_cuda(["@libtorch//:cudart"]),
    )
    native.cc_library(
        name = name + "_kernels",
        srcs = if_cuda([name + "_kernels.cc"]),
        hdrs = if_cuda(["launch.h"]),
        # For //attention_backends/flash_cuda:libtessera_flash_kernels.so.
        alwayslink = True,
        deps = [":interface", ":layout"] + if_cuda(["@libtorch//:cudart"] + kernels),
    )
