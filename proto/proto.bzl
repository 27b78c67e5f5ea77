"""C++ code from .proto files, with Debian's protoc: one macro for messages, one for gRPC services."""

_PROTOC = "protoc -I. "

def baton_cc_proto(name, srcs, deps = [], visibility = ["//visibility:public"]):
    """Messages of `srcs`. `deps` are other baton_cc_proto targets whose files are imported."""
    stems = [src[:-len(".proto")] for src in srcs]
    native.filegroup(name = name + "_srcs", srcs = srcs, visibility = visibility)
    native.genrule(
        name = name + "_gen",
        srcs = srcs + [dep + "_srcs" for dep in deps],
        outs = [stem + ext for stem in stems for ext in (".pb.h", ".pb.cc")],
        cmd = _PROTOC + "--cpp_out=$(GENDIR) " + " ".join(["$(location %s)" % src for src in srcs]),
        message = "Generating protobuf code for",
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".pb.cc" for stem in stems],
        hdrs = [stem + ".pb.h" for stem in stems],
        copts = ["-w"],
        visibility = visibility,
        deps = deps + ["//lib/system:protobuf"],
    )

def baton_cc_grpc(name, srcs, protos, imports = [], visibility = ["//visibility:public"]):
    """gRPC stubs of `srcs`, whose messages are in `protos` and import those of `imports`."""
    stems = [src[:-len(".proto")] for src in srcs]
    native.genrule(
        name = name + "_gen",
        srcs = srcs + [dep + "_srcs" for dep in imports],
        outs = [stem + ext for stem in stems for ext in (".grpc.pb.h", ".grpc.pb.cc")],
        cmd = _PROTOC + "--grpc_out=$(GENDIR) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin " +
              " ".join(["$(location %s)" % src for src in srcs]),
        message = "Generating gRPC code for",
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".grpc.pb.cc" for stem in stems],
        hdrs = [stem + ".grpc.pb.h" for stem in stems],
        copts = ["-w"],
        visibility = visibility,
        deps = protos + ["//lib/system:grpc"],
    )

def baton_generated_code(name, visibility = ["//visibility:public"]):
    """All code that the macros above generate in this package. Call it after them."""
    native.filegroup(
        name = name,
        srcs = [rule for rule in native.existing_rules() if rule.endswith("_gen")],
        visibility = visibility,
    )
