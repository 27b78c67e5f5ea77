"""Negative controls of the fuzzers: Baton's own sources, each with one defect, have to be caught."""

load("//tests/fuzz:fuzzer.bzl", "baton_fuzzer")

def mutant(name, src, edit, automatic = False):
    """A broken copy of `src`, by `edit` for sed, under the fuzzers of hostile workers.

    `name`_worker_fuzzer and `name`_engine_fuzzer (--config=fuzz) have to find it; `automatic`: the
    corpus does, in a test. The copy is an object of the program itself, so the linker does not take
    the right one out of its library. An edit that changes nothing any more fails the build.
    """
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = [src],
        outs = [name + "_source.cc"],
        cmd = "sed -e '" + edit + "' $< > $@ && ! cmp -s $< $@",
        tags = [] if automatic else ["manual"],
    )
    for entry in ["worker", "engine"]:
        baton_fuzzer(
            name = name + "_" + entry,
            entry = "Hostile" + entry.capitalize(),
            target = ":hostile",
            more_srcs = [name + "_source.cc"],
        )
    native.cc_test(
        name = name + "_mutant_test",
        size = "medium",
        srcs = [
            "mutant_test.cc",
            "targets.h",
            name + "_source.cc",
        ],
        copts = ["-Wno-error"],
        data = native.glob(["corpus/hostile_*/**"]),
        local_defines = ["MUTANT=" + name],
        tags = ["no-tsan"] if automatic else ["manual"],
        deps = [
            ":hostile",
            "//lib/system:gtest_main",
        ],
    )

def unfound_mutant(**kwargs):
    """One that no fuzzer has found yet, in half an hour each: `./run fuzz --mutants` leaves it out."""
    mutant(**kwargs)
