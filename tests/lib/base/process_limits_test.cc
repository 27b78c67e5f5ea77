#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "lib/base/process_limits.h"

namespace baton {
namespace {

constexpr uint64_t kMebibyte = 1 << 20;

// Of a child: no capabilities, and this limit. Then says what CheckMemlockLimit does, and ends with
// 0 when it allows `bytes`.
[[noreturn]] void CheckAsAUser(rlimit limit, uint64_t bytes) {
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(3);
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capset, &header, none) != 0) _exit(3);
  RaiseMemlockLimit();
  const absl::Status status = CheckMemlockLimit(bytes);
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  _exit(status.ok() ? 0 : 1);
}

TEST(MemlockTest, shouldSayWhatIsThereWhatIsNeededAndWhatToDo) {
  EXPECT_EXIT(CheckAsAUser({kMebibyte, kMebibyte}, 3 * kMebibyte / 2), ::testing::ExitedWithCode(1),
              "RLIMIT_MEMLOCK is 1 MiB, 2 MiB needed to register memory: set "
              "LimitMEMLOCK=infinity in batond's unit, or ulimit -l");
}

TEST(MemlockTest, shouldUseWhatTheHardLimitAllows) {
  EXPECT_EXIT(CheckAsAUser({kMebibyte, 2 * kMebibyte}, 2 * kMebibyte), ::testing::ExitedWithCode(0),
              "");
  EXPECT_EXIT(CheckAsAUser({kMebibyte, 2 * kMebibyte}, 2 * kMebibyte + 1),
              ::testing::ExitedWithCode(1), "RLIMIT_MEMLOCK is 2 MiB, 3 MiB needed");
}

}  // namespace
}  // namespace baton
