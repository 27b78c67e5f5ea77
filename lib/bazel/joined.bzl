"""Sources that are compiled together.

Most of what a source costs is what it includes and instantiates, and in the sources of a folder most of that is the
same: as one they take a half to a quarter of the time.
"""

def joined_library(name, joined, srcs = [], textual_hdrs = [], **kwargs):
    """A cc_library, some sources of which are compiled as one: names in their unnamed namespaces have to differ.

    Args:
      name: of the library.
      joined: its sources that are compiled as one. Those of which a program has another version, as the mutants of
        tests/simulation have, go into srcs.
      srcs: its other sources.
      textual_hdrs: as for cc_library.
      **kwargs: as for cc_library.
    """
    source = name + "_joined.cc"
    native.genrule(
        name = name + "_joined",
        testonly = kwargs.get("testonly", False),
        outs = [source],
        cmd = "printf '#include \"%s\"\\n' {} >$@".format(
            " ".join([native.package_name() + "/" + path for path in joined]),
        ),
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = srcs + [source],
        textual_hdrs = textual_hdrs + joined,
        **kwargs
    )
