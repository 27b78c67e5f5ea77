"""Negative controls: defects of Baton's own sources, each of which has to be caught by its test.

One copy of each source has all of its defects, and $BATON_MUTANT chooses which one is there. Every
mutant is a line of tests/simulation/MUTANTS.md, which `./run bars mutants` writes and table_test checks.
"""

load("//lib/bazel:joined.bzl", "joined_library")

SIMULATE = "//tests/simulation:main.cc"

def mutant(name, src, edit, killer = SIMULATE, case = None, header = None, deep = False, brokers = False, stepped = False, deps = [], first = 1):
    """A defect, for `mutants`.

    Args:
      name: of the mutant, as it is told in the table.
      src: label of the source that is broken.
      edit: for sed. It makes a source that is broken where the word MUTANT in it is true. An edit that
        changes nothing any more fails the build.
      killer: label of the test's source that catches it instead of the simulation; with its `case`.
      case: Suite.name of the test case that has to fail.
      header: with killer: the file is a header, which the killer includes through this macro. MUTANT
        is not known there: the edit makes the defect.
      stepped: the killer kills after each instruction. Sanitizers' own are a hundred times as many.
      deep: the simulation needs schedules in which much is outstanding.
      brokers: brokers drive the queues in the simulation.
      deps: of the killer alone. They answer in the place of libc, which the others are not to meet.
      first: the seed of the first schedule that is tried, shortly before the one that shows the defect, for
        defects that it takes long to come to. `./run bars mutants` tries all from 1 on.
    """
    return struct(
        name = name,
        src = src,
        edit = edit,
        killer = killer,
        case = case,
        header = header,
        deps = deps,
        first = first,
        # A header's mutant leaves out a fence. ThreadSanitizer's atomics order memory anyway.
        tags = ["no-asan", "no-tsan"] if stepped else ["no-tsan"] if header else [],
        # What the killer is called with.
        arguments = ["--gtest_filter=" + case] if case else ["--deep", "1" if deep else "0"] + (["--brokers", "1"] if brokers else []),
    )

def keeper_mutant(name, src, edit, first = 1):
    """A defect that the simulation of keepers which die catches."""
    return mutant(
        name = name,
        src = src,
        edit = edit,
        first = first,
        case = "KeeperSimulationTest.shouldKeepEveryPromiseWhereverKeepersDie",
        killer = "//tests/simulation:keeper/keeper_simulation_test.cc",
        deps = ["//tests/simulation:keeper_simulation"],
    )

def _test(mutant):
    if mutant.case:
        package = mutant.killer.split(":")[0]
        return package + ":" + _base(mutant.killer).replace(".cc", "") + " " + mutant.case
    return "//tests/simulation:simulate " + " ".join(mutant.arguments)

def _base(src):
    return src.split(":")[1].split("/")[-1]

# Makes `mutant`.mutation, for the table, of the files $< and $$next.
def _record(mutant):
    return ("{ echo name " + mutant.name + "; echo source " + mutant.src + "; echo test '" + _test(mutant) +
            "'; diff $< $$next || true; } > $(location " + mutant.name + ".mutation); ")

# Makes $$next of `from`.
def _edit(mutant, source):
    return ("sed -e '" + mutant.edit + "' " + source + " > $$next; if cmp -s " + source + " $$next; then echo '" +
            mutant.name + ": its edit changes nothing' >&2; exit 1; fi; ")

def _mutate_source(src, numbers, mutants):
    command = "set -e; all=$$(mktemp); next=$$(mktemp); cat $< > $$all; "
    for mutant in mutants:
        command += _edit(mutant, "$<") + _record(mutant) + _edit(mutant, "$$all")
        command += ("sed -e 's/\\bMUTANT\\b/(::baton::ChosenMutant() == " + str(numbers[mutant.name]) +
                    ")/g' $$next > $$all; ")
    out = "mutated_" + _base(src)
    native.genrule(
        name = out + "_source",
        testonly = True,
        srcs = [src],
        outs = [out] + [mutant.name + ".mutation" for mutant in mutants],
        cmd = command + "{ echo '#include \"tests/simulation/chosen_mutant.h\"'; cat $$all; } > $(location " +
              out + "); rm $$all $$next",
    )
    return out

def _mutate_header(mutant):
    out = mutant.name + ".h"
    native.genrule(
        name = mutant.name + "_source",
        testonly = True,
        srcs = [mutant.src],
        outs = [out, mutant.name + ".mutation"],
        cmd = "set -e; next=$$(mktemp); " + _edit(mutant, "$<") + _record(mutant) +
              "mv $$next $(location " + out + ")",
    )
    return out

def _test_mutant(name, number, first, program, arguments, tags):
    native.sh_test(
        name = name + "_mutant_test",
        size = "medium",
        srcs = ["catch_mutant.sh"],
        args = [str(number), str(first), "$(location " + program + ")"] + arguments,
        data = [program],
        tags = ["mutant"] + tags,
    )

def mutants(mutants, deps):
    """For each of `mutants` a test that passes when the defect is caught.

    The broken sources are an object of the programs themselves (alwayslink), so the linker does not take
    the right ones out of their libraries. There they are joined_mutated, or apart from all others.

    Args:
      mutants: a list of what mutant() returns.
      deps: of the killers.
    """
    numbers = {}
    of_sources = {}
    killers = {}
    killers_deps = {}
    for mutant in mutants:
        numbers[mutant.name] = len(numbers) + 1
        if mutant.header:
            broken = _mutate_header(mutant)
            native.cc_binary(
                name = mutant.name + "_mutant",
                testonly = True,
                srcs = [mutant.killer, broken],
                # The test includes the broken header through this macro.
                local_defines = [mutant.header + "=\\\"tests/simulation/" + broken + "\\\""],
                copts = ["-w"],
                deps = deps + ["//lib/system:gtest_main"],
            )
        else:
            of_sources.setdefault(mutant.src, []).append(mutant)
            killers[mutant.killer] = "mutants_under_" + _base(mutant.killer)[:-len(".cc")]
            killers_deps[mutant.killer] = mutant.deps

    joined_library(
        name = "mutated_sources",
        testonly = True,
        joined = [_mutate_source(src, numbers, of_source) for src, of_source in of_sources.items()],
        hdrs = ["chosen_mutant.h"],
        copts = ["-w"],
        deps = deps,
        alwayslink = True,
    )
    for killer, program in killers.items():
        native.cc_binary(
            name = program,
            testonly = True,
            srcs = [killer],
            deps = [":mutated_sources"] + killers_deps[killer] + deps + ([] if killer == SIMULATE else ["//lib/system:gtest_main"]),
        )
    for mutant in mutants:
        program = mutant.name + "_mutant" if mutant.header else killers[mutant.killer]
        _test_mutant(
            mutant.name,
            0 if mutant.header else numbers[mutant.name],
            mutant.first,
            program,
            mutant.arguments,
            mutant.tags,
        )

def mutants_table(name, mutants):
    """The table in the tree names these mutants, and no others."""
    mutations = sorted([mutant.name + ".mutation" for mutant in mutants])
    native.filegroup(
        name = "mutations",
        testonly = True,
        srcs = mutations,
    )
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["mutants_table.sh"],
        args = [
            "check",
            "$(location MUTANTS.md)",
        ] + ["$(location " + mutation + ")" for mutation in mutations],
        data = ["MUTANTS.md"] + mutations,
    )
