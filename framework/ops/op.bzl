"""op_with_kernels: BUILD targets of an op that has its own kernels."""

load("@libtorch//:cuda.bzl", "if_cuda")
load("//framework/base:vector_math.bzl", "VECTOR_MATH_COPTS")
load("//tools/cuda:cuda_library.bzl", "PORTABLE_AND_HOPPER", "cuda_library")
load("//tools/torch:torch_cc.bzl", "torch_cc_library")

def op_with_kernels(name, kernels_hdrs = [], kernels_deps = [], has_math = False, cpu_deps = [], cuda_deps = [], deps = []):
    """Defines the targets of an op from the files of its folder.

    NAME.h, NAME.cc: the builder function and the op. NAME_kernels.h: the
    interface of the kernels. NAME_reference.cc, NAME_cpu.cc, NAME_cuda.cc: the
    kinds of kernels (framework/ops/kernel_choice.h). NAME.cu, NAME_launch.h:
    the CUDA kernels and their launch functions. NAME_math.h: the equations that
    CPU loops and CUDA kernels share.

    Args:
      name: name of the op and its folder.
      kernels_hdrs: headers of this folder that NAME_kernels.h includes.
      kernels_deps: dependencies of NAME_kernels.h from other folders.
      has_math: whether there is a NAME_math.h.
      cpu_deps: dependencies of NAME_cpu.cc from other folders.
      cuda_deps: dependencies of NAME.cu from other targets.
      deps: dependencies of NAME.cc from other folders.
    """
    kernels = ":" + name + "_kernels"
    math = []
    if has_math:
        math = [":" + name + "_math"]
        native.cc_library(
            name = name + "_math",
            hdrs = [name + "_math.h"],
            deps = ["//framework/cuda:host_device"],
        )
    torch_cc_library(
        name = name + "_kernels",
        hdrs = [name + "_kernels.h"] + kernels_hdrs,
        deps = math + kernels_deps + ["//framework/program"],
    )

    # Not with the precompiled header, which has other compiler options.
    native.cc_library(
        name = name + "_cpu",
        srcs = [name + "_cpu.cc"],
        copts = VECTOR_MATH_COPTS + ["-fopenmp"],
        deps = [
            kernels,
            "//framework/base:vector_math",
            "//framework/ops:cpu_rows",
            "//framework/ops:rows",
        ] + cpu_deps,
    )
    cuda_library(
        name = name + "_cuda_kernels",
        srcs = [name + ".cu"],
        hdrs = [name + "_launch.h"],
        gencode = PORTABLE_AND_HOPPER,
        deps = math + ["//framework/cuda:kernel"] + cuda_deps,
    )
    torch_cc_library(
        name = name,
        srcs = [
            name + ".cc",
            name + "_reference.cc",
        ] + if_cuda([name + "_cuda.cc"]),
        hdrs = [name + ".h"],
        deps = [
            kernels,
            ":" + name + "_cpu",
            "//framework/base:check",
            "//framework/ops:kernel_choice",
            "//framework/ops:rows",
            "//framework/program",
        ] + deps + if_cuda([
            ":" + name + "_cuda_kernels",
            "//framework/base:torch_status",
            "//framework/cuda:launch",
        ]),
    )
