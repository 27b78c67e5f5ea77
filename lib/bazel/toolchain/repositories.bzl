"""The repositories that WORKSPACE writes itself: a digest of installed headers, and small ones in the place of those that
Bazel would download."""

# Prints the contents of all headers that a header includes.
_SCRIPT = """
set -e
/usr/bin/clang-14 -std=c++20 -x c++ -M "$1" | tr -s ' \\\\\\n' '\\n' | grep '^/usr/' | sort -u |
  xargs cat | sha256sum
"""

def _system_headers_impl(repository_ctx):
    header = repository_ctx.path(repository_ctx.attr.header)
    result = repository_ctx.execute(["/bin/bash", "-o", "pipefail", "-c", _SCRIPT, "sh", str(header)])
    if result.return_code != 0:
        fail("cannot read the headers of " + str(header) + ": " + result.stderr)
    repository_ctx.file("digest", result.stdout)
    repository_ctx.file("BUILD.bazel", 'exports_files(["digest"])\n')

# A digest of the installed headers that the precompiled header is made of. Bazel does not know of files in /usr: without
# the digest, an upgrade of a package leaves a precompiled header behind that clang refuses to use.
system_headers = repository_rule(
    implementation = _system_headers_impl,
    attrs = {"header": attr.label(mandatory = True)},
    # It is run again by each new server, and when ./run says that packages have changed.
    local = True,
    environ = ["BATON_PACKAGES"],
)

# Libraries that executables contain: a linker's script, or none where another one has all that is needed. The releases
# of the packages are in one of them: Bazel does not know of files in /usr, and links again when a script has changed.
_ARCHIVES = """
set -e
packages=$(dpkg-query -W -f '${Package} ${Version}, ' libgrpc-dev libprotobuf-dev libabsl-dev libc-ares-dev libre2-dev)
cd /usr/lib/x86_64-linux-gnu
real() { printf 'INPUT('; printf ' %s' "$@"; printf ' )\\n'; }
for name in grpc++_reflection grpc++ gpr protobuf; do real "$PWD/lib$name.a" >"$1/lib$name.a"; done
real $PWD/lib{grpc,upb,address_sorting,cares,re2}.a 'AS_NEEDED( -lssl -lcrypto -lz -lsystemd )' >"$1/libgrpc.a"
echo "/* $packages */" >>"$1/libgrpc.a"
for archive in libabsl_*.a; do printf '!<arch>\\n' >"$1/$archive"; done
real $PWD/libabsl_*.a >"$1/libabsl_synchronization.a"
"""

def _static_libraries_impl(repository_ctx):
    directory = repository_ctx.path("lib")
    repository_ctx.file("lib/BUILD.bazel", 'filegroup(name = "lib", srcs = glob(["*.a"]), ' +
                                           'visibility = ["//visibility:public"])\n')
    result = repository_ctx.execute(["/bin/bash", "-c", _ARCHIVES, "sh", str(directory)])
    if result.return_code != 0:
        fail("cannot list the archives of gRPC: " + result.stderr)

# A directory in which the linker finds gRPC, protobuf and Abseil as archives, under the names by which it would find them as
# shared libraries. A program that has them in itself starts in six tenths of the time, and in an emulated machine in four:
# the dynamic loader maps some 45 libraries less, and looks for 10,000 symbols less.
static_libraries = repository_rule(
    implementation = _static_libraries_impl,
    local = True,
    environ = ["BATON_PACKAGES"],
)

def _written_repository_impl(repository_ctx):
    for path, content in repository_ctx.attr.files.items():
        repository_ctx.file(path, content)

# A repository whose files are `files`, a dictionary from paths to contents.
written_repository = repository_rule(
    implementation = _written_repository_impl,
    attrs = {"files": attr.string_dict(mandatory = True)},
)
