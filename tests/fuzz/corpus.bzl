"""The inputs that a fuzz target keeps, as files."""

def _unpacked_corpus_impl(ctx):
    inputs = ctx.actions.declare_directory("corpus/" + ctx.attr.target)
    ctx.actions.run_shell(
        outputs = [inputs],
        inputs = [ctx.file.archive],
        command = "tar --extract --file \"$1\" --directory \"$2\"",
        arguments = [ctx.file.archive.path, inputs.path],
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
    """:TARGET_corpus is a directory, corpus/TARGET, with the inputs of corpus/TARGET.tar (corpus.sh)."""
    _unpacked_corpus(
        name = target + "_corpus",
        archive = "corpus/" + target + ".tar",
        target = target,
    )
