"""A script of the virtual machine's that runs on this machine, on the soft device (see BUILD.bazel beside this)."""

def soft_test(name, script, programs = [], data = [], args = [], size = "medium"):
    options = []
    for program in programs:
        options += ["--program", "$(location %s)" % program]
    native.sh_test(
        name = name,
        size = size,
        srcs = ["run_on_soft.sh"],
        args = options + ["$(location %s)" % script] + args,
        data = [script] + programs + data,
        tags = ["system"],
    )
