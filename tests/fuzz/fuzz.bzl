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
        srcs = ["fuzzer_main.cc"] + more_srcs,
        # A broken copy leaves out what used a parameter.
        copts = ["-DBATON_FUZZ_TARGET=" + entry] + (["-w"] if more_srcs else []),
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [target, ":shared_reads"],
    )

# ---- Mutants: Baton's own sources, each with one defect, have to be caught.

def _mutant(name, src, edit, automatic, target, entries, defines = []):
    """`entries`: by their corpora, the functions of tests/fuzz/program.h that have to find the defect."""
    native.genrule(
        name = name + "_source",
        srcs = [src],
        outs = [name + "_source.cc"],
        cmd = "sed -e '" + edit + "' $< > $@ && ! cmp -s $< $@",
    )
    for corpus, entry in entries.items():
        baton_fuzzer(
            name = name + "_" + corpus,
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
        data = [":%s_corpus" % corpus for corpus in entries],
        local_defines = [
            "MUTANT=" + name,
            "MUTANT_UNDER=" + "".join(["FUZZER(%s,%s)" % entry for entry in entries.items()]),
        ] + defines,
        tags = ["no-tsan"] if automatic else ["manual"],
        deps = [
            target,
            ":shared_reads",
            "//lib/system:gtest_main",
        ],
    )

def mutant(name, src, edit, automatic = False, leaves_memory = False):
    """A broken copy of `src`, by `edit` for sed, under the fuzzers of hostile workers.

    `name`_hostile_worker_fuzzer and `name`_hostile_engine_fuzzer (--config=fuzz) have to find it;
    `automatic`: the corpus does, in a test. The copy is an object of the program itself, so the
    linker does not take the right one out of its library. An edit that changes nothing any more
    fails the build.
    `leaves_memory`: what the corpus makes of the defect is an access to memory that is not there.
    """
    _mutant(
        name = name,
        src = src,
        edit = edit,
        automatic = automatic,
        target = ":hostile",
        entries = {
            "hostile_worker": "HostileWorker",
            "hostile_engine": "HostileEngine",
        },
        defines = ["MUTANT_LEAVES_MEMORY"] if leaves_memory else [],
    )

def unfound_mutant(**kwargs):
    """One that no fuzzer has found yet, in half an hour each: `./run fuzz --mutants` counts it as alive."""
    mutant(**kwargs)

# By their names, the fuzzers of one kind of input each: the target and its function.
_FUZZERS = {
    "nic_clients": (":nic", "NicClients"),
    "nic_queues": (":nic_queues", "NicQueues"),
    "nvme_capsule": (":nvme", "NvmeCapsule"),
}

def input_mutant(name, src, edit, under, automatic = False):
    """As `mutant`, under the fuzzer `under` alone: `name`_`under`_fuzzer."""
    target, entry = _FUZZERS[under]
    _mutant(
        name = name,
        src = src,
        edit = edit,
        automatic = automatic,
        target = target,
        entries = {under: entry},
    )
