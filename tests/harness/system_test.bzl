"""Tests of whole Batons, and the programs that they need."""

# What every service needs.
SERVICE_PROGRAMS = [
    "//supervisor/batond",
    "//supervisor/control:baton-control",
    "//supervisor/driver:baton-driver",
    "//supervisor/keeper:baton-keeper",
    "//supervisor/keeper:baton-launch",
]

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
        data = SERVICE_PROGRAMS + [
            "//supervisor/cli:baton",
            "//worker/examples/ledger:ledger-v1",
            "//worker/examples/ledger:ledger-v2",
            "//worker/examples/peer:baton-peer",
        ] + data,
        tags = (["exclusive"] if alone else []) + ["system"] + tags,
        deps = [
            "//lib/base",
            "//lib/system:absl",
            "//lib/system:gtest_main",
            "//tests/harness:baton_command",
            "//tests/harness:cluster",
            "//tests/harness:cluster_fixture",
            "//tests/harness:expectations",
            "//tests/harness:patience",
            "//tests/harness:process",
        ] + deps,
        **kwargs
    )
