"""How an example service is built: each part twice, the second with the crash points of
lib/base/crash_point.h, and its program once for each version: an upgrade between them is a change of
binary and of nothing else."""

load("//lib/bazel:joined.bzl", "joined_library")
load("//worker:service.bzl", "baton_service")

def example_library(name, srcs, hdrs, deps, parts = [], test_hooks_parts = []):
    """A cc_library, and a testonly one with _test_hooks behind its name.

    Args:
      name: of the library.
      srcs: its sources, which are compiled as one (joined.bzl).
      hdrs: its headers.
      deps: of both.
      parts: of the first: //worker, or another example_library.
      test_hooks_parts: of the second, likewise.
    """
    joined_library(
        name = name,
        joined = srcs,
        hdrs = hdrs,
        deps = deps + parts,
    )
    joined_library(
        name = name + "_test_hooks",
        testonly = True,
        joined = srcs,
        hdrs = hdrs,
        deps = deps + test_hooks_parts,
    )

def example_programs(name, deps, parts, test_hooks_parts):
    """main.cc as NAME-v1 and NAME-v2, with NAME_VERSION defined, and both with -test-hooks; each as
    a program, and as an object for native workers with .so behind its name.

    Args:
      name: of the program.
      deps: of all.
      parts: of those without crash points.
      test_hooks_parts: of those with them.
    """
    for version in (1, 2):
        define = "%s_VERSION=%d" % (name.upper(), version)
        baton_service(
            name = "%s-v%d" % (name, version),
            srcs = ["main.cc"],
            local_defines = [define],
            deps = deps + parts,
        )
        baton_service(
            name = "%s-v%d-test-hooks" % (name, version),
            testonly = True,
            srcs = ["main.cc"],
            local_defines = [define],
            deps = deps + test_hooks_parts,
        )
