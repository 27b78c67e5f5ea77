"""What gRPC's own objects and the headers they inline need at link time (pkg-config --libs grpc++)."""

GRPC_LINKOPTS = [
    "-lgrpc++_reflection",
    "-lgrpc++",
    "-lgrpc",
    "-lgpr",
    "-labsl_synchronization",
    "-labsl_statusor",
    "-labsl_status",
    "-labsl_cord",
    "-labsl_strings",
    "-labsl_strings_internal",
    "-labsl_time",
    "-labsl_base",
    "-labsl_raw_logging_internal",
    "-labsl_throw_delegate",
]
