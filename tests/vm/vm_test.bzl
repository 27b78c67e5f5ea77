"""A test that runs in a virtual machine with an RDMA device (see BUILD.bazel beside this)."""

def vm_test(name, script = None, programs = [], data = [], args = [], peer = None, size = "medium", cpus = None):
    script = script or name + ".sh"
    options = []
    for program in programs:
        options += ["--program", "$(location %s)" % program]
    if cpus:
        options += ["--cpus", str(cpus)]
    if peer:
        options += ["--peer", "$(location %s)" % peer]
    native.sh_test(
        name = name,
        size = size,
        srcs = ["run_in_machine.sh"],
        args = options + ["$(location %s)" % script] + args,
        data = [script, "//deploy/vm:machine"] + programs + data + ([peer] if peer else []),
        # One machine at a time, and nothing beside it.
        tags = ["exclusive", "local", "system", "vm"],
    )
