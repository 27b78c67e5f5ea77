// Besides libraries.h, what sources of processes include that speak with each other: Asio, and
// Baton's own messages, which compilers.bzl adds. A source that includes neither is compiled more
// slowly with them.
#ifndef LIB_BAZEL_TOOLCHAIN_SERVICES_H_
#define LIB_BAZEL_TOOLCHAIN_SERVICES_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_replace.h"

#endif  // LIB_BAZEL_TOOLCHAIN_SERVICES_H_
