"""A directory of manual pages, whose names the generator knows."""

def _man_pages(context):
    directory = context.actions.declare_directory(context.label.name)
    context.actions.run(
        outputs = [directory],
        executable = context.executable.generator,
        arguments = [directory.path],
    )
    return [DefaultInfo(
        files = depset([directory]),
        runfiles = context.runfiles([directory]),
    )]

man_pages = rule(
    implementation = _man_pages,
    attrs = {
        "generator": attr.label(
            cfg = "target",
            executable = True,
            mandatory = True,
        ),
    },
)
