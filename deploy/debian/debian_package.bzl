"""A Debian package of what Bazel builds."""

def debian_package(name, files, links = {}, **kwargs):
    """NAME.deb.

    Args:
      name: of the package.
      files: where each goes, by its label: see build_package.sh.
      links: what each symbolic link names, by its path.
      **kwargs: as for genrule.
    """
    native.genrule(
        name = name + "_package",
        srcs = files.keys(),
        outs = [name + ".deb"],
        cmd = "$(location build_package.sh) $@ " + " ".join(
            ["$(location %s)=%s" % item for item in files.items()] +
            ["link:%s=%s" % (target, path) for path, target in links.items()],
        ),
        tools = ["build_package.sh"],
        visibility = ["//visibility:public"],
        **kwargs
    )
