"""Tests of several sources in one program."""

load("//lib/bazel:joined.bzl", "joined_library")

def _part_impl(ctx):
    part = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = part, target_file = ctx.executable.program, is_executable = True)
    return [DefaultInfo(executable = part, runfiles = ctx.attr.program[DefaultInfo].default_runfiles)]

# The cases of one source: its name chooses them (cc_tests_main.cc).
_part_test = rule(
    implementation = _part_impl,
    attrs = {
        "program": attr.label(
            cfg = "target",
            executable = True,
            mandatory = True,
        ),
    },
    test = True,
)

def _name_of(path):
    return path.split("/")[-1]

def cc_cases(name, paths, deps, **kwargs):
    """NAME, a library of the cases of several sources, joined.

    Args:
      name: of the library.
      paths: of the sources, without ".cc".
      deps: of all of them.
      **kwargs: as for cc_library.
    """
    joined_library(
        name = name,
        testonly = True,
        alwayslink = True,
        joined = [path + ".cc" for path in paths],
        deps = deps,
        **kwargs
    )

def cc_parts(name, cases, paths, deps = [], data = [], prefix = "", parts = {}, **kwargs):
    """NAME, a program of cases, and a test for each source of theirs, named as it.

    Args:
      name: of the program, which runs all of them.
      cases: a library of cc_cases.
      paths: as for cc_cases.
      deps: more than the cases.
      data: of all tests.
      prefix: of the tests' names, which ends with "_".
      parts: attributes by the source's name, in addition to and instead of kwargs.
      **kwargs: attributes of tests: size, tags, visibility and others.
    """
    native.cc_binary(
        name = name,
        testonly = True,
        data = data,
        deps = [
            cases,
            "//tests/harness:cc_tests_main",
        ] + deps,
    )
    for path in paths:
        attributes = dict(kwargs)
        attributes.update(parts.get(_name_of(path), {}))
        _part_test(
            name = prefix + _name_of(path),
            program = name,
            **attributes
        )

def cc_tests(name, paths, deps, data = [], parts = {}, **kwargs):
    """A test for each source, named as it; all are compiled and linked together, as NAME.

    Args:
      name: of the program.
      paths: as for cc_cases.
      deps: of all tests, without gtest's main.
      data: of all tests.
      parts: as for cc_parts.
      **kwargs: as for cc_parts.
    """
    cc_cases(
        name = name + "_cases",
        paths = paths,
        deps = deps,
    )
    cc_parts(
        name = name,
        cases = name + "_cases",
        paths = paths,
        data = data,
        parts = parts,
        **kwargs
    )
