"""cc_proto: a .proto file as a cc_library, by the distribution's protoc.

Bazel's own cc_proto_library needs protobuf's sources. Here both the runtime and
the compiler come from the distribution, so their versions match.
"""

def cc_proto(name, src, deps = [], **kwargs):
    """`name` provides the generated header; deps are other cc_proto targets."""
    stem = src[:-len(".proto")]
    native.filegroup(
        name = name + "_sources",
        srcs = [src] + [_sources(dep) for dep in deps],
        **kwargs
    )
    native.genrule(
        name = name + "_protoc",
        srcs = [":" + name + "_sources"],
        outs = [stem + ".pb.h", stem + ".pb.cc"],
        cmd = "/usr/bin/protoc -I. --cpp_out=$(GENDIR) {}/{}".format(native.package_name(), src),
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".pb.cc"],
        hdrs = [stem + ".pb.h"],
        deps = deps + ["@system//:protobuf"],
        **kwargs
    )

def _sources(dep):
    if ":" not in dep:
        dep = dep + ":" + dep.split("/")[-1]
    return dep + "_sources"
