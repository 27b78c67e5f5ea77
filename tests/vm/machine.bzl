"""Scripts as tests: in a virtual machine with an RDMA device, or on this machine (see BUILD.bazel beside this)."""

def vm_test(
        name,
        script = None,
        programs = [],
        data = [],
        args = [],
        peer = False,
        size = "large",
        cpus = 1,
        lossy = None,
        judges_itself = False,
        killed_owners = False,
        alone = False,
        manual = False):
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
        tags = (["exclusive"] if alone else []) + (["manual"] if manual else []) + ["local", "system", "vm"],
    )

def vm_tests(name, tests, cpus = 1):
    """Tests of one machine, one after another (in_one_machine.sh), each of which may be run by its own name, too.

    Args:
      name: of the machine.
      tests: what vm_test takes for each (also rdma()), but no peer and not alone; cpus are for those that are run by
        their names.
      cpus: of the machine.
    """
    words, programs, data = [], {}, {"common.sh": None}
    for test in tests:
        script = test.get("script", test["name"] + ".sh")
        judge = "judged"
        if test.get("lossy"):
            judge = "lossy"
        elif test.get("judges_itself"):
            judge = "judges-itself"
        elif test.get("killed_owners"):
            judge = "killed-owners"
        words.append("'%s'" % " ".join([test["name"], judge, "$(location %s)" % script] + test.get("args", [])))
        programs.update({program: None for program in test.get("programs", [])})
        data.update({file: None for file in [script] + test.get("data", [])})
        vm_test(manual = True, **test)
    vm_test(
        name = name,
        script = "in_one_machine.sh",
        args = words,
        cpus = cpus,
        data = data.keys(),
        judges_itself = True,
        programs = programs.keys(),
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

def rdma(name, tests, args = [], **kwargs):
    """Returns, for vm_test, what runs programs of GoogleTest in a machine, one after another: on_rdma.sh.

    Args:
      name: of the test.
      tests: LABEL or LABEL=FILTER, of each program; the same program may come again with another filter.
      args: variables for the programs.
      **kwargs: as for vm_test.
    """
    programs = [test.partition("=")[0] for test in tests]
    return dict(
        name = name,
        script = "on_rdma.sh",
        args = args + [
            "$(location %s)%s" % (program, test[len(program):])
            for program, test in zip(programs, tests)
        ],
        data = {program: None for program in programs}.keys(),
        **kwargs
    )

def rdma_test(**kwargs):
    vm_test(**rdma(**kwargs))
