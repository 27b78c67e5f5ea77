"""Scripts as tests: in a virtual machine with an RDMA device, or on this machine (see BUILD.bazel beside this)."""

def vm_test(
        name,
        script = None,
        programs = [],
        data = [],
        args = [],
        peer = False,
        size = "medium",
        cpus = 1,
        lossy = None,
        judges_itself = False,
        killed_owners = False,
        alone = False):
    script = script or name + ".sh"
    options = ["--cpus", str(cpus)]
    for program in programs:
        options += ["--program", "$(location %s)" % program]
    if lossy:
        options += ["--lossy", "'%s'" % lossy]
    elif judges_itself:
        options.append("--judges-itself")
    elif killed_owners:
        options.append("--killed-owners")
    elif peer:
        fail("%s: what two machines count is judged together: judges_itself or lossy" % name)
    # What takes more of the host than one machine of one or two processors: run_tests.sh runs only one such at a time.
    wide = peer or cpus > 2
    if peer:
        options += ["--peer", "$(location %s)" % script]
    native.sh_test(
        name = name,
        size = "enormous" if wide else size,
        timeout = {"medium": "moderate", "large": "long"}[size],
        srcs = ["run_in_machine.sh"],
        args = options + ["$(location %s)" % script] + args,
        data = [
            script,
            "judged.sh",
            "rxe_common.sh",
            "//deploy:machine",
        ] + programs + data,
        tags = (["exclusive"] if alone else []) + ["local", "system", "vm"],
    )

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
