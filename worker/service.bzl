"""A service from one source, for both kinds of worker."""

def native_object(name, srcs, deps, **kwargs):
    """NAME.so, which native workers load: processes that `baton-driver` forks.

    It exports its main and the worker library's baton_native_object, and nothing else: what it links
    statically is its own, whatever else its process has loaded.

    Args:
      name: of the object.
      srcs: its sources, with `int main(int argc, char** argv)`.
      deps: with //worker.
      **kwargs: as for cc_binary.
    """
    native.cc_binary(
        name = name + ".so",
        srcs = srcs,
        additional_linker_inputs = ["//worker:native_object.lds"],
        linkopts = ["-Wl,--version-script=$(location //worker:native_object.lds)"],
        linkshared = True,
        deps = deps,
        **kwargs
    )

def baton_service(name, srcs, deps, **kwargs):
    """NAME, the program of a brokered worker, and NAME.so, the object of a native one.

    Args:
      name: of the program.
      srcs: its sources, with `int main(int argc, char** argv)`.
      deps: of both, with //worker.
      **kwargs: of both: testonly and visibility.
    """
    native.cc_library(
        name = name + "_main",
        srcs = srcs,
        alwayslink = True,
        deps = deps,
        **kwargs
    )
    native.cc_binary(
        name = name,
        deps = [name + "_main"],
        **kwargs
    )
    native_object(
        name = name,
        srcs = [],
        deps = [name + "_main"],
        **kwargs
    )
