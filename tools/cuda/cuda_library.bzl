"""cuda_library: compiles .cu files with the pinned nvcc into a cc_library.

Each source is its own action, so kernels build in parallel. An action depends
on exactly the headers that its deps declare. compile.py compares them with
nvcc's list of the headers it read, so every change of a header is noticed.

Architectures: by default PORTABLE, which is machine code for sm_80 and PTX for
everything later; PORTABLE_AND_HOPPER for kernels that run on compute capability
9.0, too, where machine code saves programs seconds of compiling PTX, and which
LaunchEarly() (framework/cuda/kernel.cuh) needs; HOPPER for
sources that use WGMMA, TMA or setmaxnreg.

In a CPU build a cuda_library is an empty cc_library; callers use if_cuda() from
@libtorch//:cuda.bzl for the sources that need it.
"""

load("@libtorch//:cuda.bzl", "CUDA")

PORTABLE = ["arch=compute_80,code=[sm_80,compute_80]"]
PORTABLE_AND_HOPPER = PORTABLE + ["arch=compute_90,code=sm_90"]
HOPPER = ["arch=compute_90a,code=sm_90a"]

def _cuda_object_impl(ctx):
    compilation = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    headers = depset(ctx.files.hdrs, transitive = [compilation.headers])
    out = ctx.actions.declare_file(ctx.label.name + ".o")
    args = ctx.actions.args()
    args.add("--nvcc", ctx.file._nvcc)
    args.add("--src", ctx.file.src)
    args.add("--out", out)
    args.add_all(headers, before_each = "--hdr")
    args.add("--")
    args.add_all([
        "-std=c++20",
        "-O3",
        # Every program contains the kernels. Compressed, they take a quarter of
        # the space and a few milliseconds to unpack at the start. Line numbers
        # (-lineinfo, for ncu's source view) would double the size.
        "--compress-mode=size",
        "--expt-relaxed-constexpr",
        "-Xcompiler=-fPIC",
    ])
    args.add_all(ctx.attr.gencode, format_each = "-gencode=%s")
    args.add_all(ctx.attr.copts)
    args.add("-I.")
    args.add_all(compilation.includes, before_each = "-I")
    args.add_all(compilation.system_includes, before_each = "-isystem")
    # nvcc has no -iquote.
    args.add_all(compilation.quote_includes, before_each = "-I")
    args.add_all(compilation.defines, format_each = "-D%s")
    args.use_param_file("@%s")
    args.set_param_file_format("multiline")
    ctx.actions.run(
        executable = "python3",
        arguments = [ctx.file._compile.path, args],
        inputs = depset([ctx.file.src, ctx.file._compile], transitive = [headers, depset(ctx.files._toolkit)]),
        outputs = [out],
        mnemonic = "CudaCompile",
        progress_message = "Compiling %{input}".replace("%{input}", ctx.file.src.short_path),
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]))]

_cuda_object = rule(
    implementation = _cuda_object_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "gencode": attr.string_list(mandatory = True),
        "_nvcc": attr.label(default = "@libtorch//:nvcc", allow_single_file = True),
        "_toolkit": attr.label(default = "@libtorch//:nvcc_files"),
        "_compile": attr.label(default = "//tools/cuda:compile.py", allow_single_file = True),
    },
) if CUDA else None

def cuda_library(name, srcs, hdrs = [], deps = [], gencode = PORTABLE, copts = [], **kwargs):
    """A cc_library of `.cu` sources, which include no torch or proto headers.

    Args:
      name: the cc_library.
      srcs: `.cu` files.
      hdrs: `.h` launch interfaces and `.cuh` device headers.
      deps: cc_library targets whose headers the sources include.
      gencode: nvcc's -gencode values; PORTABLE or HOPPER, or both.
      copts: further nvcc options.
      **kwargs: cc_library's (visibility, tags, ...).
    """
    if not CUDA:
        native.cc_library(name = name, hdrs = hdrs, deps = deps, **kwargs)
        return
    objects = []
    for src in srcs:
        stem = "{}_{}".format(name, src.replace("/", "_").replace(".cu", ""))
        _cuda_object(
            name = stem,
            src = src,
            hdrs = hdrs,
            deps = deps,
            gencode = gencode,
            copts = copts,
        )
        objects.append(":" + stem)
    native.cc_library(
        name = name,
        srcs = objects,
        hdrs = hdrs,
        deps = deps + ["@libtorch//:cudart"],
        **kwargs
    )
