"""Negative controls of the checking peer: a recovery with one defect, whose harm is predicted."""

# Keeps, in the broken copy, what of each connection's sends was known to be posted at first.
FIRST_AMBIGUOUS = [
    "s/^namespace {$$/&uint64_t first_ambiguous[64];/",
    "s/^  slots_\\[index\\].sends_held = Out.*/&first_ambiguous[index] = connection.send.posted;/",
]

def controls_test(name, defect = None, edits = []):
    """controls_test.cc, as it is or with a broken recovery.

    The broken copy is an object of the test itself, so the linker does not take the right one out
    of its library. An edit that changes nothing any more fails the build: with some of them the copy
    would be broken in another way than the test predicts.

    Args:
      name: of the program.
      defect: what controls_test.cc calls it.
      edits: for sed, of lib/driver/recovery.cc.
    """
    broken = []
    if edits:
        broken = [name + "_recovery.cc"]
        native.genrule(
            name = name + "_recovery",
            testonly = True,
            srcs = ["//lib/driver:recovery.cc"],
            outs = broken,
            cmd = "cat $< > $@" + "".join([
                " && sed -e '" + edit + "' $@ > $@.new && ! cmp -s $@ $@.new && mv $@.new $@"
                for edit in edits
            ]),
        )
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = ["controls_test.cc"] + broken,
        copts = ["-w"] if broken else [],
        local_defines = [defect] if defect else [],
        deps = [
            ":harness",
            "//lib/arena",
            "//lib/base",
            "//lib/driver",
            "//lib/system:absl",
            "//lib/system:gtest",
        ],
    )
