"""cc_library, cc_binary and cc_test for sources that include LibTorch.

A translation unit that includes ATen spends 10 to 15 s on its headers. These
wrappers compile the headers once (//tools/torch:precompiled) and pre-include
the result, which reduces that to about 4 s. Sources do not rely on it: each
includes what it uses, and if the compiler rejects the precompiled header (other
flags, another compiler), it reads the original headers.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# at::parallel_for() is a template in a header: without this flag it silently
# runs on one thread.
_PARALLEL = "-fopenmp"

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    context = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    ctx.actions.write(header, "".join(["#include <{}>\n".format(h) for h in ctx.attr.headers]))
    flags = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            use_pic = True,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + [_PARALLEL],
            preprocessor_defines = context.defines,
            quote_include_directories = context.quote_includes,
            include_directories = context.includes,
            system_include_directories = context.system_includes,
        ),
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = flags + ["-x", "c++-header", "-c", header.path, "-o", compiled.path],
        inputs = depset([header], transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling LibTorch's headers",
        use_default_shell_env = True,
    )
    return [
        DefaultInfo(files = depset([header, compiled])),
        CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset([header, compiled]),
        )),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "headers": attr.string_list(mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

_DEPS = [
    "//tools/torch:precompiled",
    "@libtorch//:torch",
    "@system//:absl",
]
_COPTS = [_PARALLEL, "-include", "tools/torch/precompiled.h"]

def torch_cc_library(deps = [], copts = [], **kwargs):
    native.cc_library(deps = deps + _DEPS, copts = copts + _COPTS, **kwargs)

def torch_cc_binary(deps = [], copts = [], **kwargs):
    native.cc_binary(deps = deps + _DEPS, copts = copts + _COPTS, **kwargs)

def torch_cc_test(deps = [], copts = [], **kwargs):
    native.cc_test(deps = deps + _DEPS, copts = copts + _COPTS, **kwargs)
