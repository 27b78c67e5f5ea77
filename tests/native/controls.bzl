"""Negative controls of the checking peer: a recovery with one defect, whose harm is predicted."""

def controls_test(name, defect = None, edits = {}):
    """controls_test.cc, as it is or with a broken recovery.

    The broken copies are objects of the test itself, so the linker does not take the right ones out
    of their library. An edit that changes nothing any more fails the build: with some of them the
    copy would be broken in another way than the test predicts.

    Args:
      name: of the program.
      defect: what controls_test.cc calls it.
      edits: for sed, by the name of the source in lib/driver.
    """
    broken = []
    for source, of_source in edits.items():
        out = name + "_" + source
        native.genrule(
            name = out + "_source",
            testonly = True,
            srcs = ["//lib/driver:" + source],
            outs = [out],
            cmd = "cat $< > $@" + "".join([
                " && sed -e '" + edit + "' $@ > $@.new && ! cmp -s $@ $@.new && mv $@.new $@"
                for edit in of_source
            ]),
        )
        broken.append(out)
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
