#include "tests/bench/descriptor_limit.h"

#include <sys/resource.h>

#include "absl/strings/str_cat.h"

namespace baton::bench {
namespace {

// Of a process besides one for each connection.
constexpr uint64_t kOtherDescriptors = 256;

}  // namespace

absl::Status RaiseDescriptorLimit(uint64_t connections) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::InternalError("getrlimit failed");
  limit.rlim_cur = limit.rlim_max;
  const uint64_t needed = connections + kOtherDescriptors;
  if (limit.rlim_max < needed || setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(connections, " connections need a hard RLIMIT_NOFILE of ", needed, "; it is ",
                     limit.rlim_max, ": raise it, or give fewer --connections"));
  }
  return absl::OkStatus();
}

}  // namespace baton::bench
