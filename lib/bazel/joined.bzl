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
        testonly = kwargs.get("testonly"),
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

def joined_binary(name, joined, hdrs = [], deps = [], features = [], testonly = None, **kwargs):
    """A cc_binary, all sources of which are compiled as one, as those of a joined_library.

    Args:
      name: of the program.
      joined: its sources.
      hdrs: headers of its own.
      deps: as for cc_binary.
      features: likewise.
      testonly: likewise.
      **kwargs: as for cc_binary.
    """
    joined_library(
        name = name + "_sources",
        testonly = testonly,
        joined = joined,
        hdrs = hdrs,
        features = features,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    native.cc_binary(
        name = name,
        testonly = testonly,
        deps = [name + "_sources"],
        **kwargs
    )
