"""A libFuzzer program of one fuzz target."""

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
