"""Negative controls of the fuzzers: Baton's own sources, each with one defect, have to be caught."""

load("//tests/fuzz:fuzzer.bzl", "baton_fuzzer")

def _mutant(name, src, edit, automatic, target, corpora, entries, defines = []):
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = [src],
        outs = [name + "_source.cc"],
        cmd = "sed -e '" + edit + "' $< > $@ && ! cmp -s $< $@",
    )
    for suffix, entry in entries.items():
        baton_fuzzer(
            name = name + "_" + suffix,
            entry = entry,
            target = target,
            more_srcs = [name + "_source.cc"],
        )
    native.cc_test(
        name = name + "_mutant_test",
        size = "medium",
        srcs = [
            "mutant_test.cc",
            name + "_source.cc",
        ],
        copts = ["-w"],
        data = corpora,
        local_defines = ["MUTANT=" + name] + defines,
        tags = ["no-tsan"] if automatic else ["manual"],
        deps = [
            target,
            ":shared_reads",
            "//lib/system:gtest_main",
        ],
    )

def mutant(name, src, edit, automatic = False, leaves_memory = False):
    """A broken copy of `src`, by `edit` for sed, under the fuzzers of hostile workers.

    `name`_worker_fuzzer and `name`_engine_fuzzer (--config=fuzz) have to find it; `automatic`: the
    corpus does, in a test. The copy is an object of the program itself, so the linker does not take
    the right one out of its library. An edit that changes nothing any more fails the build.
    `leaves_memory`: what the corpus makes of the defect is an access to memory that is not there.
    """
    _mutant(
        name = name,
        src = src,
        edit = edit,
        automatic = automatic,
        target = ":hostile",
        corpora = [":hostile_engine_corpus", ":hostile_worker_corpus"],
        entries = {
            "worker": "HostileWorker",
            "engine": "HostileEngine",
        },
        defines = ["MUTANT_LEAVES_MEMORY"] if leaves_memory else [],
    )

def unfound_mutant(**kwargs):
    """One that no fuzzer has found yet, in half an hour each: `./run fuzz --mutants` counts it as alive."""
    mutant(**kwargs)

def capsule_mutant(name, src, edit, automatic = False):
    """As `mutant`, under the fuzzer of nvmed's capsules: `name`_capsule_fuzzer."""
    _mutant(
        name = name,
        src = src,
        edit = edit,
        automatic = automatic,
        target = ":nvme",
        corpora = [":nvme_capsule_corpus"],
        entries = {"capsule": "NvmeCapsule"},
        defines = ["MUTANT_OF_CAPSULES"],
    )

def nic_mutant(name, src, edit, automatic = False):
    """As `mutant`, under the fuzzer of hostile clients of a NIC: `name`_nic_fuzzer."""
    _mutant(
        name = name,
        src = src,
        edit = edit,
        automatic = automatic,
        target = ":nic",
        corpora = [":nic_clients_corpus"],
        entries = {"nic": "NicClients"},
        defines = ["MUTANT_OF_NICS"],
    )

def queue_mutant(name, src, edit, automatic = False):
    """As `mutant`, under the fuzzer of the queues of a NIC's hostile client: `name`_queues_fuzzer."""
    _mutant(
        name = name,
        src = src,
        edit = edit,
        automatic = automatic,
        target = ":nic_queues",
        corpora = [":nic_queues_corpus"],
        entries = {"queues": "NicQueues"},
        defines = ["MUTANT_OF_QUEUES"],
    )
