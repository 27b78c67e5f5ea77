// Named points (lib/base/crash_point.h) for processes with test hooks that a test does not start
// itself, such as native workers.
#ifndef TESTS_HARNESS_CRASH_POINTS_H_
#define TESTS_HARNESS_CRASH_POINTS_H_

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/crash_point.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "tests/harness/temp_directory.h"

namespace baton::harness {

// One at a time in a process, whose environment it changes.
class CrashPoints {
 public:
  // Processes that are started while it lives, and those that they start, look at it.
  static absl::StatusOr<std::unique_ptr<CrashPoints>> Create() {
    BATON_ASSIGN_OR_RETURN(TempDirectory directory, TempDirectory::Create());
    const std::string path = directory.File("plan");
    std::ofstream(path, std::ios::binary) << std::string(sizeof(CrashPlan), '\0');
    const FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    void* const memory =
        mmap(nullptr, sizeof(CrashPlan), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) return ErrnoStatus(errno, path);
    setenv("BATON_CRASH_FILE", path.c_str(), 1);
    return std::unique_ptr<CrashPoints>(
        new CrashPoints(std::move(directory), static_cast<CrashPlan*>(memory)));
  }
  ~CrashPoints() {
    unsetenv("BATON_CRASH_FILE");
    munmap(plan_, sizeof(CrashPlan));
  }
  CrashPoints(const CrashPoints&) = delete;
  CrashPoints& operator=(const CrashPoints&) = delete;

  // The process that makes the `passing`th passing of `point` from now on kills itself. REQUIRES:
  // `point` is shorter than CrashPlan::kNameBytes.
  void Arm(const std::string& point, uint32_t passing) {
    plan_->left.store(0, std::memory_order_release);
    std::memcpy(plan_->name, point.c_str(), point.size() + 1);
    plan_->left.store(passing, std::memory_order_release);
  }
  // Nobody has died there yet.
  bool is_armed() const { return plan_->left.load(std::memory_order_acquire) != 0; }

 private:
  CrashPoints(TempDirectory directory, CrashPlan* plan)
      : directory_(std::move(directory)), plan_(plan) {}

  const TempDirectory directory_;
  CrashPlan* const plan_;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_CRASH_POINTS_H_
