#include "lib/base/placement.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/status.h"

namespace baton {
namespace {

bool ParseNumber(absl::string_view text, uint32_t* number) {
  return !text.empty() && absl::SimpleAtoi(text, number) && *number < CPU_SETSIZE;
}

}  // namespace

absl::StatusOr<std::set<uint32_t>> ParseCpus(std::string_view list) {
  std::set<uint32_t> cpus;
  if (list.empty()) return cpus;
  for (const absl::string_view part : absl::StrSplit(View(list), ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    uint32_t first = 0, last = 0;
    if (!ParseNumber(ends.front(), &first) || !ParseNumber(ends.back(), &last) || last < first) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" is neither a number below ",
                                                     CPU_SETSIZE,
                                                     " nor a range of them, as in 2-5,8"));
    }
    for (uint32_t cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

ThreadsOn::ThreadsOn(const std::set<uint32_t>& cpus, Inherited inherited) {
  if (cpus.empty()) return;
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const uint32_t cpu : cpus) CPU_SET(cpu, &wanted);
  const bool known = sched_getaffinity(0, sizeof(before_), &before_) == 0;
  if (known && inherited == Inherited::kBounds) {
    CPU_AND(&wanted, &wanted, &before_);
    if (CPU_COUNT(&wanted) == 0) {
      status_ = absl::FailedPreconditionError(
          "none of the CPUs of the device's NUMA node is among those that this process was given: "
          "name others in the service's placement");
      return;
    }
  }
  if (!known || sched_setaffinity(0, sizeof(wanted), &wanted) != 0) {
    status_ = ErrnoStatus(errno, "sched_setaffinity (are the CPUs online, and of our cpuset?)");
    return;
  }
  bound_ = true;
}

ThreadsOn::~ThreadsOn() {
  if (bound_) (void)sched_setaffinity(0, sizeof(before_), &before_);
}

MemoryOn::MemoryOn(std::optional<uint32_t> node) {
  if (!node) return;
  if (*node >= kMaxNodes) {
    status_ = absl::InvalidArgumentError(absl::StrCat("NUMA node ", *node, ": there is none"));
    return;
  }
  Nodes nodes = {};
  nodes[*node / kBitsPerWord] |= 1ul << *node % kBitsPerWord;
  // The kernel reads one bit less than this argument says.
  if (syscall(SYS_get_mempolicy, &policy_before_, nodes_before_.data(), kMaxNodes + 1, nullptr,
              0) != 0 ||
      syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), kMaxNodes + 1) != 0) {
    status_ = ErrnoStatus(errno, absl::StrCat("set_mempolicy for NUMA node ", *node,
                                              " (is it there, and may this process call it?)"));
    return;
  }
  set_ = true;
}

MemoryOn::~MemoryOn() {
  if (!set_) return;
  (void)syscall(SYS_set_mempolicy, policy_before_,
                policy_before_ == MPOL_DEFAULT ? nullptr : nodes_before_.data(),
                policy_before_ == MPOL_DEFAULT ? 0 : kMaxNodes + 1);
}

}  // namespace baton
