"""Negative controls: Baton's own sources, each with one defect, have to be caught.

Every mutant is a line of tests/MUTANTS.md, which `./run bars mutants` writes and table_test checks.
"""

def mutant(name, src, edit, killer = None, case = None, header = None, deep = False, killer_deps = None):
    """A test that passes when the defect that `edit`, for sed, makes in `src` is caught.

    By default the simulation has to catch it. The broken copy is an object of the test itself, so
    the linker does not take the right one out of its library. An edit that changes nothing any more
    fails the build.

    Args:
      name: of the mutant, as it is told in the table.
      src: label of the source that is broken.
      edit: for sed.
      killer: label of the test's source that catches it instead of the simulation; with its `case`.
      case: Suite.name of the test case that has to fail.
      header: with killer: the file is a header, which the killer includes through this macro.
      killer_deps: of the killer, where they are not those of most.
      deep: the simulation needs schedules in which much is outstanding.
    """
    broken = name + (".h" if header else "_source.cc")
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = [src],
        outs = [broken],
        cmd = "sed -e '" + edit + "' $< > $@ && ! cmp -s $< $@",
    )
    if killer == None:
        test = "//tests/simulation:" + name + "_mutant_test"
        native.cc_test(
            name = name + "_mutant_test",
            size = "medium",
            srcs = [
                "mutant_test.cc",
                broken,
            ],
            copts = ["-Wno-error"],
            local_defines = ["MUTANT=" + name] + (["DEEP_SCHEDULES"] if deep else []),
            tags = ["mutant"],
            deps = [
                ":simulation",
                "//lib/system:gtest",
            ],
        )
    else:
        test = killer.replace(".cc", "") + " " + case
        native.cc_binary(
            name = name + "_mutant",
            testonly = True,
            srcs = [killer, broken],
            copts = ["-Wno-error"],
            # Of the test, which is to include the broken header.
            local_defines = [header + "=\\\"tests/simulation/" + broken + "\\\""] if header else [],
            deps = killer_deps or [
                "//lib/arena",
                "//lib/base",
                "//lib/driver",
                "//lib/system:gtest_main",
                "//lib/verbs",
                "//lib/verbs/soft",
                "//supervisor/keeper:engine",
                "//tests/harness:process",
                "//tests/lib/driver:harness",
                "//tests/lib/verbs:forwarding_device",
                "//tests/supervisor/keeper:keeper_harness",
                "//worker",
            ],
        )
        native.sh_test(
            name = name + "_mutant_test",
            size = "medium",
            srcs = ["expect_failure.sh"],
            args = ["$(location :" + name + "_mutant)", case],
            data = [":" + name + "_mutant"],
            tags = ["mutant"],
        )
    native.genrule(
        name = name + "_mutation",
        testonly = True,
        srcs = [src, broken],
        outs = [name + ".mutation"],
        cmd = "{ echo 'name " + name + "'; echo 'source " + src + "'; echo 'test " + test +
              "'; diff $(SRCS) || true; } > $@",
        tags = ["mutation"],
    )

def mutants_table(name):
    """The table in the tree names the mutants that come before this, and no others."""
    mutations = [
        ":" + rule["name"]
        for rule in native.existing_rules().values()
        if "mutation" in rule["tags"]
    ]
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["mutants_table.sh"],
        args = [
            "check",
            "$(location //tests:MUTANTS.md)",
        ] + ["$(location " + mutation + ")" for mutation in sorted(mutations)],
        data = ["//tests:MUTANTS.md"] + mutations,
    )
