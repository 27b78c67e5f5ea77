"""Debian's compilers as a C++ toolchain: clang, and g++ for the data path, with headers that are
compiled once for many sources."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load(
    "@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl",
    "action_config",
    "feature",
    "flag_group",
    "flag_set",
    "tool",
    "tool_path",
    "with_feature_set",
)

_CLANG = "/usr/bin/clang-14"
_GCC = "/usr/bin/g++"

# Targets with the feature "data_path" are compiled by g++: what it makes of the drivers and of the
# worker library posts 10 to 15 % more messages a second than what clang makes of them. Sanitizers and
# libFuzzer are clang's for all.
_BY_GCC = with_feature_set(features = ["data_path"], not_features = ["sanitized"])
_BY_CLANG = [
    with_feature_set(not_features = ["data_path"]),
    with_feature_set(features = ["sanitized"]),
]

# What every source is compiled with. A precompiled header is valid only beside the same language
# options and macros, so they are here and not in .bazelrc; -O1 to -O3 and -g do not matter to it,
# and code without optimisation has one of its own.
_COMPILE_FLAGS = [
    "-std=c++20",
    "-fPIC",
    "-fstack-protector",
    "-fno-omit-frame-pointer",
    "-ffunction-sections",
    "-fdata-sections",
    "-DNDEBUG",
    "-DBOOST_ASIO_NO_DEPRECATED",
    "-DBOOST_ERROR_CODE_HEADER_ONLY",
    "-DSPDLOG_COMPILED_LIB",
    "-DSPDLOG_FMT_EXTERNAL",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=1",
    "-O2",
    "-g1",
    "-Wall",
    "-Wextra",
    "-Werror",
    # Outputs depend on their sources alone.
    "-Wno-builtin-macro-redefined",
    "-D__DATE__=\"redacted\"",
    "-D__TIMESTAMP__=\"redacted\"",
    "-D__TIME__=\"redacted\"",
]

_CLANG_FLAGS = _COMPILE_FLAGS + [
    # The macro ibv_reg_mr of rdma-core combines enumerators of two types.
    "-Wno-deprecated-enum-enum-conversion",
]

# Targets with the feature "unoptimized", which are tests that compute little, take a quarter less
# time to compile, and half of it where they include CLI11. Their libraries that simulations and
# benchmarks use, too, are without it. The macro _FORTIFY_SOURCE needs the optimiser.
_UNOPTIMIZED_FLAGS = [
    "-O0",
    "-g0",
    "-U_FORTIFY_SOURCE",
]
_UNOPTIMIZED = with_feature_set(features = ["unoptimized"], not_features = ["data_path", "sanitized"])

# It makes a tenth fewer instructions. It comes after the options of .bazelrc, which are for tests: a
# benchmark's own loops are compiled as Baton's are, and a precompiled header of g++ is valid only
# beside the same -O.
_GCC_LAST_FLAGS = ["-O3"]

_GCC_FLAGS = _COMPILE_FLAGS + [
    "-Wno-free-nonheap-object",
    "-fno-canonical-system-headers",
    # Position-independent code of ours calls itself directly, as other code does.
    "-fno-semantic-interposition",
    "-fomit-frame-pointer",
]

_LINK_FLAGS = [
    # It takes two thirds of gold's time, and exports what a version script says, which gold does not.
    "-fuse-ld=lld",
    "-Wl,-no-as-needed",
    "-Wl,-z,relro,-z,now",
    "-Wl,--gc-sections",
    "-B/usr/bin",
    "-lstdc++",
    "-lm",
]

_LINK_ACTIONS = [
    ACTION_NAMES.cpp_link_executable,
    ACTION_NAMES.cpp_link_dynamic_library,
    ACTION_NAMES.cpp_link_nodeps_dynamic_library,
]

def _precompiled_header_impl(ctx):
    output = ctx.actions.declare_file(ctx.attr.out)
    ctx.actions.run_shell(
        # From a directory that is the same everywhere, and without names of files: clang would write
        # down where they are, and the output could not be shared by two clones. What is generated
        # includes only each other and installed headers.
        command = "output=$1 sources=$2 && shift 2 && set -o pipefail && " +
                  "grep -hv '#include \"proto/' $sources | (cd / && exec \"$@\") >\"$output\"",
        arguments = [output.path, " ".join([file.path for file in ctx.files.sources])] + ctx.attr.command,
        inputs = ctx.files.sources + [ctx.file.installed],
        outputs = [output],
        mnemonic = "PrecompileHeader",
    )
    return [DefaultInfo(files = depset([output]))]

_precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "command": attr.string_list(),
        # Changes when an installed header does.
        "installed": attr.label(allow_single_file = True, mandatory = True),
        "out": attr.string(),
        "sources": attr.label_list(allow_files = [".h"], mandatory = True),
    },
)

def precompiled_headers(libraries, services, data_path, installed):
    """Targets libraries, services, libraries_unoptimized, services_unoptimized, and data_path.

    Those for clang are for targets with or without the features "services" and "unoptimized".

    Args:
      libraries: headers, in their order. What they include is installed.
      services: besides, with the feature "services".
      data_path: for g++.
      installed: a digest of the installed headers.
    """
    for name, sources in [("libraries", libraries), ("services", libraries + services)]:
        for suffix, flags in [("", []), ("_unoptimized", _UNOPTIMIZED_FLAGS)]:
            _precompiled_header(
                name = name + suffix,
                out = name + suffix + ".pch",
                sources = sources,
                command = [_CLANG] + _CLANG_FLAGS + flags + ["-x", "c++-header", "-", "-o", "-"] + [
                    # The contents of the headers decide, not when they were installed.
                    "-Xclang",
                    "-fno-pch-timestamp",
                    "-Xclang",
                    "-fpch-instantiate-templates",
                ],
                installed = installed,
                tags = ["manual"],  # the toolchain has it built
            )
    _precompiled_header(
        name = "data_path",
        out = "data_path.h.gch",
        sources = data_path,
        command = [_GCC] + _GCC_FLAGS + _GCC_LAST_FLAGS +
                  # Sources with more of debug information, or none, can have it, too.
                  ["-g1", "-x", "c++-header", "/dev/stdin", "-o", "/dev/stdout"],
        installed = installed,
        tags = ["manual"],
    )

def _when_compiling(flags, with_features):
    return flag_set(
        actions = [ACTION_NAMES.cpp_compile],
        flag_groups = [flag_group(flags = flags)],
        with_features = with_features,
    )

def _config_impl(ctx):
    compile_flags = feature(
        name = "default_compile_flags",
        enabled = True,
        flag_sets = [
            _when_compiling(_CLANG_FLAGS, _BY_CLANG),
            _when_compiling(_GCC_FLAGS, [_BY_GCC]),
        ],
    )

    # Bazel would put the options of .bazelrc last.
    user_compile_flags = feature(
        name = "user_compile_flags",
        enabled = True,
        flag_sets = [flag_set(
            actions = [ACTION_NAMES.cpp_compile],
            flag_groups = [flag_group(
                expand_if_available = "user_compile_flags",
                flags = ["%{user_compile_flags}"],
                iterate_over = "user_compile_flags",
            )],
        )],
    )
    unoptimized = feature(
        name = "unoptimized",
        flag_sets = [_when_compiling(_UNOPTIMIZED_FLAGS, [_UNOPTIMIZED])],
    )

    data_path = feature(
        name = "data_path_last_flags",
        enabled = True,
        flag_sets = [_when_compiling(_GCC_LAST_FLAGS, [_BY_GCC])],
    )

    # Sanitizers' builds are without: there, each source includes what it uses.
    precompiled = feature(
        name = "precompiled_header",
        enabled = True,
        flag_sets = [
            _when_compiling(["-include-pch", header.path], [with_feature_set(
                features = features,
                not_features = ["data_path", "sanitized"] + [
                    other
                    for other in ["services", "unoptimized"]
                    if other not in features
                ],
            )])
            for header, features in [
                (ctx.file.libraries, []),
                (ctx.file.libraries_unoptimized, ["unoptimized"]),
                (ctx.file.services, ["services"]),
                (ctx.file.services_unoptimized, ["services", "unoptimized"]),
            ]
        ] + [
            # g++ looks for that with .gch behind it.
            _when_compiling(["-include", ctx.file.data_path.path[:-len(".gch")]], [_BY_GCC]),
        ],
    )
    link_flags = feature(
        name = "default_link_flags",
        enabled = True,
        flag_sets = [
            flag_set(
                actions = _LINK_ACTIONS,
                flag_groups = [flag_group(flags = _LINK_FLAGS)],
            ),
            # Shared objects cannot have Debian's archives in themselves: those are compiled for executables.
            flag_set(
                actions = [ACTION_NAMES.cpp_link_executable],
                flag_groups = [flag_group(flags = ["-Lexternal/static_libraries/lib"])],
            ),
        ],
    )
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        features = [
            compile_flags,
            user_compile_flags,
            unoptimized,
            data_path,
            precompiled,
            link_flags,
            feature(name = "data_path"),
            feature(name = "sanitized"),
            feature(name = "services"),
            feature(name = "supports_pic", enabled = True),
            feature(name = "supports_start_end_lib", enabled = True),
        ],
        action_configs = [action_config(
            action_name = ACTION_NAMES.cpp_compile,
            tools = [
                tool(path = _GCC, with_features = [_BY_GCC]),
                tool(path = _CLANG, with_features = _BY_CLANG),
            ],
            implies = [
                "user_compile_flags",
                "sysroot",
                "unfiltered_compile_flags",
                "compiler_input_flags",
                "compiler_output_flags",
            ],
        )],
        cxx_builtin_include_directories = [
            "/usr/include",
            "/usr/local/include",
            "/usr/lib/gcc/x86_64-linux-gnu/12",
            "/usr/lib/llvm-14/lib/clang/14.0.6/include",
            "/usr/lib/llvm-14/lib/clang/14.0.6/share",
        ],
        toolchain_identifier = "compilers",
        host_system_name = "local",
        target_system_name = "local",
        target_cpu = "k8",
        target_libc = "glibc",
        compiler = "clang",
        abi_version = "local",
        abi_libc_version = "local",
        tool_paths = [tool_path(name = name, path = path) for name, path in {
            "ar": "/usr/bin/ar",
            "cpp": "/usr/bin/clang-cpp-14",
            "dwp": "/usr/bin/dwp",
            "gcc": _CLANG,
            "gcov": "/bin/false",
            "ld": "/usr/bin/ld",
            "llvm-cov": "/bin/false",
            "nm": "/usr/bin/nm",
            "objcopy": "/usr/bin/objcopy",
            "objdump": "/usr/bin/objdump",
            "strip": "/usr/bin/strip",
        }.items()],
    )

compilers_config = rule(
    implementation = _config_impl,
    attrs = {
        name: attr.label(allow_single_file = True, cfg = "exec", mandatory = True)
        for name in [
            "data_path",
            "libraries",
            "libraries_unoptimized",
            "services",
            "services_unoptimized",
        ]
    },
    provides = [CcToolchainConfigInfo],
)
