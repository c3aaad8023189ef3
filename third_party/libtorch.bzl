"""The @libtorch repository: one of two pinned wheel sets, CPU or CUDA.

TESSERA_CUDA chooses: 1 is CUDA, 0 is CPU, auto (the default) is CUDA where an
NVIDIA GPU is present, so that a laptop neither downloads nor compiles it.
`--config=cuda` and `--config=cpu` set it. BUILD files branch with

    load("@libtorch//:cuda.bzl", "if_cuda")
    deps = [...] + if_cuda([...])
"""

_CHOICES = ["auto", "0", "1"]

def _wants_cuda(ctx):
    choice = ctx.os.environ.get("TESSERA_CUDA", "auto")
    if choice not in _CHOICES:
        fail("TESSERA_CUDA is '{}'; it must be one of {}".format(choice, ", ".join(_CHOICES)))
    if choice == "auto":
        return ctx.path("/dev/nvidiactl").exists
    return choice == "1"

def _libtorch_impl(ctx):
    cuda = _wants_cuda(ctx)
    lock = ctx.attr.cuda_lock if cuda else ctx.attr.cpu_lock
    ctx.report_progress("unpacking the {} wheels".format("CUDA" if cuda else "CPU"))
    result = ctx.execute(
        # Debian's, which has pip; a virtual environment need not.
        ["/usr/bin/python3", str(ctx.path(ctx.attr._wheels)), str(ctx.path(lock)), ctx.attr.python_version],
        timeout = 3600,
    )
    if result.return_code:
        fail("cannot fetch the wheels of {}:\n{}".format(lock, result.stderr))
    tree = ctx.path(result.stdout.strip())
    for entry in ["torch", "nvidia"]:
        ctx.symlink(tree.get_child(entry), entry)
    ctx.file("cuda.bzl", "\n".join([
        '"""Written by //third_party:libtorch.bzl."""',
        "CUDA = {}".format(cuda),
        "def if_cuda(then, otherwise = []):",
        "    return then if CUDA else otherwise",
        "",
    ]))
    build = ctx.read(ctx.attr._cuda_build if cuda else ctx.attr._cpu_build)
    ctx.file("BUILD.bazel", build.replace("{TREE}", str(tree)))

libtorch = repository_rule(
    implementation = _libtorch_impl,
    environ = ["TESSERA_CUDA", "HOME", "XDG_CACHE_HOME"],
    attrs = {
        "cpu_lock": attr.label(mandatory = True, allow_single_file = True),
        "cuda_lock": attr.label(mandatory = True, allow_single_file = True),
        # The ABI tag that pip matches. The C++ libraries are the same in the
        # wheels of all Python versions.
        "python_version": attr.string(default = "3.11"),
        "_cpu_build": attr.label(default = "//third_party:libtorch_cpu.BUILD"),
        "_cuda_build": attr.label(default = "//third_party:libtorch_cuda.BUILD"),
        "_wheels": attr.label(default = "//third_party:wheels.py"),
    },
)
