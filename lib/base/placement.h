// Sets the processors on which threads run, and the NUMA node from which memory is taken.
#ifndef LIB_BASE_PLACEMENT_H_
#define LIB_BASE_PLACEMENT_H_

#include <sched.h>

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// Parses a list of CPUs or nodes as Linux writes it, "2-5,8": numbers below CPU_SETSIZE (1024). An
// empty list has none.
absl::StatusOr<std::set<uint32_t>> ParseCpus(std::string_view list);

// The effect of the CPUs that a thread was allowed before. kBounds: new CPUs that are not among
// them are left out. kIsReplaced: all new CPUs are requested.
enum class Inherited { kBounds, kIsReplaced };

// Binds the calling thread to `cpus` until this is destroyed, and every thread that it starts
// meanwhile for good. Without CPUs, or with an error, nothing changes.
class ThreadsOn {
 public:
  ThreadsOn(const std::set<uint32_t>& cpus, Inherited inherited);
  ~ThreadsOn();
  ThreadsOn(const ThreadsOn&) = delete;
  ThreadsOn& operator=(const ThreadsOn&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  cpu_set_t before_;
  bool bound_ = false;
  absl::Status status_;
};

// Until this is destroyed, the kernel takes memory that the calling thread touches first from
// `node`, as long as that has some, also for files in memory. Without a node, or with an error,
// nothing changes.
class MemoryOn {
 public:
  explicit MemoryOn(std::optional<uint32_t> node);
  ~MemoryOn();
  MemoryOn(const MemoryOn&) = delete;
  MemoryOn& operator=(const MemoryOn&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  static constexpr uint32_t kMaxNodes = 1024;
  static constexpr uint32_t kBitsPerWord = 8 * sizeof(unsigned long);
  using Nodes = std::array<unsigned long, kMaxNodes / kBitsPerWord>;

  bool set_ = false;
  int policy_before_ = 0;
  Nodes nodes_before_ = {};
  absl::Status status_;
};

}  // namespace baton

#endif  // LIB_BASE_PLACEMENT_H_
