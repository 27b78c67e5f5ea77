"""Tests of whole Batons, and the programs that they need."""

load("//tests/harness:cc_tests.bzl", "cc_tests")

# What every service needs.
SERVICE_PROGRAMS = [
    "//supervisor/batond",
    "//supervisor/control:baton-control",
    "//supervisor/driver:baton-driver",
    "//supervisor/driver:libbaton-driver.so",
    "//supervisor/keeper:baton-keeper",
    "//supervisor/keeper:baton-launch",
]

_LEDGER_PROGRAMS = SERVICE_PROGRAMS + [
    "//supervisor/cli:baton",
    "//worker/examples/ledger:ledger-v1",
    "//worker/examples/ledger:ledger-v2",
    "//worker/examples/peer:baton-peer",
]

_HARNESS = [
    "//lib/base",
    "//lib/system:absl",
    "//lib/system:gtest_main",
    "//tests/harness:baton_command",
    "//tests/harness:cluster",
    "//tests/harness:cluster_fixture",
    "//tests/harness:expectations",
    "//tests/harness:patience",
    "//tests/harness:process",
]

def _tags(alone, tags):
    return (["exclusive"] if alone else []) + ["system"] + tags

def system_test(name, size = "medium", data = [], deps = [], alone = False, tags = [], **kwargs):
    """NAME.cc, a test of Batons with ledgers and their peers.

    Args:
      name: of the test.
      size: as for cc_test.
      data: more than Baton's programs, both versions of the ledger and the peer.
      deps: more than the harness of system tests.
      alone: nothing runs beside it.
      tags: more than those of system tests.
      **kwargs: as for cc_test.
    """
    native.cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"],
        data = _LEDGER_PROGRAMS + data,
        tags = _tags(alone, tags),
        deps = _HARNESS + deps,
        **kwargs
    )

def system_tests(name, tests, data = [], deps = []):
    """Several of them, compiled and linked together.

    Args:
      name: of the program of all.
      tests: attributes by the test's name: size, alone, tags and visibility, as for system_test.
      data: as for system_test, of all.
      deps: as for system_test, of all.
    """
    parts = {}
    for test, given in tests.items():
        attributes = {"size": "medium"}
        attributes.update(given)
        attributes["tags"] = _tags(attributes.pop("alone", False), attributes.pop("tags", []))
        parts[test] = attributes
    cc_tests(
        name = name,
        paths = tests.keys(),
        data = _LEDGER_PROGRAMS + data,
        parts = parts,
        deps = _HARNESS + deps,
    )
