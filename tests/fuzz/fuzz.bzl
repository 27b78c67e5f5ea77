"""Fuzz targets: the inputs that each keeps, its libFuzzer program, and the negative controls of the fuzzers."""

def _unpacked_corpus_impl(ctx):
    inputs = ctx.actions.declare_directory("corpus/" + ctx.attr.target)
    ctx.actions.run_shell(
        outputs = [inputs],
        inputs = [ctx.file.archive],
        command = "tar --extract --file \"$1\" --directory \"$2\" --strip-components 1 \"$3\"",
        arguments = [ctx.file.archive.path, inputs.path, ctx.attr.target],
        mnemonic = "UnpackCorpus",
    )
    return [DefaultInfo(files = depset([inputs]), runfiles = ctx.runfiles([inputs]))]

_unpacked_corpus = rule(
    implementation = _unpacked_corpus_impl,
    attrs = {
        "archive": attr.label(allow_single_file = [".tar"], mandatory = True),
        "target": attr.string(mandatory = True),
    },
)

def unpacked_corpus(target):
    """:TARGET_corpus is a directory, corpus/TARGET, with the inputs that the target keeps (corpus.sh)."""
    _unpacked_corpus(
        name = target + "_corpus",
        archive = "corpus.tar",
        target = target,
    )

def baton_fuzzer(name, entry, target, more_srcs = []):
    """`entry`: the function of tests/fuzz/program.h that `target` defines. Builds with
    --config=fuzz only, which links libFuzzer."""
    native.cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        srcs = ["fuzzer_main.cc"] + more_srcs,
        # A broken copy leaves out what used a parameter.
        copts = ["-DBATON_FUZZ_TARGET=" + entry] + (["-w"] if more_srcs else []),
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [target, ":shared_reads"],
    )

# ---- Mutants: Baton's own sources, each with one defect, have to be caught.

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
