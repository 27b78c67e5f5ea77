"""Sources that are compiled together.

Most of what a source costs is what it includes and instantiates, and in the sources of a folder most of that is the
same: as one they take a half to a quarter of the time.
"""

def joined_library(name, joined, joined_mutated = [], srcs = [], textual_hdrs = [], **kwargs):
    """A cc_library, some sources of which are compiled as one: names in their unnamed namespaces have to differ.

    Args:
      name: of the library.
      joined: its sources that are compiled as one.
      joined_mutated: likewise, as another one: all those of which tests/simulation has other versions. Programs of its
        mutants have all of them, and so take nothing of this one. Sources of which a program has a single one go into
        srcs.
      srcs: its other sources.
      textual_hdrs: as for cc_library.
      **kwargs: as for cc_library.
    """
    parts = {"_joined": joined}
    if joined_mutated:
        parts["_joined_mutated"] = joined_mutated
    for suffix, paths in parts.items():
        native.genrule(
            name = name + suffix,
            testonly = kwargs.get("testonly"),
            outs = [name + suffix + ".cc"],
            cmd = "printf '#include \"%s\"\\n' {} >$@".format(
                " ".join([native.package_name() + "/" + path for path in paths]),
            ),
            visibility = ["//visibility:private"],
        )
    native.cc_library(
        name = name,
        srcs = srcs + [name + suffix + ".cc" for suffix in parts],
        textual_hdrs = textual_hdrs + joined + joined_mutated,
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
