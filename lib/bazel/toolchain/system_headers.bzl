"""A digest of the installed headers that the precompiled header is made of.

Bazel does not know of files in /usr. Without the digest, an upgrade of a package leaves a precompiled
header behind that clang refuses to use.
"""

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

system_headers = repository_rule(
    implementation = _system_headers_impl,
    attrs = {"header": attr.label(mandatory = True)},
    # It is run again by each new server, and when ./run says that packages have changed.
    local = True,
    environ = ["BATON_PACKAGES"],
)
