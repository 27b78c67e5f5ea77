"""Negative controls: Baton's own sources, each with one defect, have to be caught."""

def mutant(name, src, edit):
    """A test that passes when the simulation catches the defect that `edit`, for sed, makes in src.

    The broken copy is an object of the test itself, so the linker does not take the right one out
    of its library. An edit that changes nothing any more fails the build.
    """
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = [src],
        outs = [name + "_source.cc"],
        cmd = "sed -e '" + edit + "' $< > $@ && ! cmp -s $< $@",
    )
    native.cc_test(
        name = name + "_mutant_test",
        size = "medium",
        srcs = [
            "mutant_test.cc",
            name + "_source.cc",
        ],
        copts = ["-Wno-error"],
        local_defines = ["MUTANT=" + name],
        deps = [
            ":simulation",
            "//lib/system:gtest",
        ],
    )
