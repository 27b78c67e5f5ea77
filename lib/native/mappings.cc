#include "lib/native/mappings.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"

namespace baton::native {
namespace {

// A line of proc(5)'s maps has a path at its end, of at most PATH_MAX.
constexpr size_t kLineBytes = 8192;
// A larger private range is reserved and not used: runtimes and sanitizers have such ranges, some
// larger than the machine's memory.
constexpr size_t kMostPrivateBytes = size_t{1} << 30;

struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool writable = false;
};

// Returns all ranges before any is populated, because reading the file maps memory.
std::vector<Range> MappedRanges() {
  std::vector<Range> ranges;
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   std::fclose);
  std::vector<char> line(kLineBytes);
  while (maps != nullptr && std::fgets(line.data(), kLineBytes, maps.get()) != nullptr) {
    Range range;
    char readable = '-', writable = '-', shared = '-';
    if (std::sscanf(line.data(), "%" SCNxPTR "-%" SCNxPTR " %c%c%*c%c", &range.begin, &range.end,
                    &readable, &writable, &shared) != 5) {
      continue;
    }
    range.writable = writable == 'w';
    if (shared == 'p' && range.end - range.begin > kMostPrivateBytes) continue;
    if (readable == 'r') ranges.push_back(range);
  }
  return ranges;
}

// A sanitizer would find that this reads what nobody has written.
__attribute__((no_sanitize("address", "thread"))) void Touch(const Range& range) {
  constexpr uintptr_t kPage = 4096;
  for (uintptr_t page = range.begin; page < range.end; page += kPage) {
    (void)*reinterpret_cast<const volatile uint8_t*>(page);
  }
}

// Unmapping a piece of 4-KiB pages takes some ten microseconds, and a pause 70 with the kernel's
// timer slack. A large mapping is unmapped in larger pieces, so that none takes a second.
constexpr uintptr_t kPieceBytes = 256 << 10;
constexpr uintptr_t kMostPieces = 2048;
constexpr timespec kPause = {0, 20'000};
constexpr size_t kStackBytes = 32 << 10;
constexpr uint64_t kStartNs = 1'000'000'000;

// The unmapper shares the process's memory, including its thread-local variables. So it calls
// nothing that locks or allocates, and has its own stack and buffer.
struct Unmapper {
  alignas(16) uint8_t stack[kStackBytes];
  char maps[16 << 10];
  int process = -1;  // pidfd
  int kept = -1;     // another descriptor
  std::atomic<bool> started{false};
};
Unmapper g_unmapper;

// `line` is one of proc(5)'s maps: "7f0000000000-7f0000010000 rw-s ...". Private mappings stay,
// among them the code and the stack.
void UnmapIfShared(const char* line, const char* line_end) {
  uintptr_t begin = 0, end = 0;
  const char* at = std::from_chars(line, line_end, begin, 16).ptr;
  if (*at != '-') return;
  at = std::from_chars(at + 1, line_end, end, 16).ptr;
  if (*at != ' ' || std::memchr(at + 1, '\n', 4) != nullptr || at[4] != 's') {
    return;
  }
  const uintptr_t piece = kPieceBytes * ((end - begin) / (kPieceBytes * kMostPieces) + 1);
  for (; begin < end; begin += piece) {
    // A part of a huge page cannot be unmapped: the kernel then unmaps all of it at the end.
    if (syscall(SYS_munmap, begin, std::min(piece, end - begin)) != 0) return;
    syscall(SYS_nanosleep, &kPause, nullptr);
  }
}

// The kernel continues the file behind the last mapping that was read, whatever was unmapped.
void UnmapShared() {
  const auto file =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC));
  char* const maps = g_unmapper.maps;
  size_t length = 0;
  for (;;) {
    const auto got = syscall(SYS_read, file, maps + length, sizeof(g_unmapper.maps) - length);
    if (got <= 0) return;
    length += static_cast<size_t>(got);
    const char* line = maps;
    const char* const end = maps + length;
    while (const auto* const next =
               static_cast<const char*>(std::memchr(line, '\n', static_cast<size_t>(end - line)))) {
      UnmapIfShared(line, next);
      line = next + 1;
    }
    length = static_cast<size_t>(end - line);
    std::memmove(maps, line, length);
  }
}

bool Close(int first, int last) {
  return syscall(SYS_close_range, static_cast<unsigned>(first), static_cast<unsigned>(last), 0) ==
         0;
}

int Run(void*) {
  syscall(SYS_prctl, PR_SET_NAME, kUnmapperName);
  // Other processes may wait until the last copy of a descriptor is closed.
  int next = 0;
  for (const int kept : {std::min(g_unmapper.process, g_unmapper.kept),
                         std::max(g_unmapper.process, g_unmapper.kept)}) {
    if (kept > next && !Close(next, kept - 1)) syscall(SYS_exit_group, 1);
    next = kept + 1;
  }
  if (!Close(next, -1)) syscall(SYS_exit_group, 1);
  g_unmapper.started.store(true);
  pollfd end = {g_unmapper.process, POLLIN, 0};
  if (syscall(SYS_ppoll, &end, 1, nullptr, nullptr, 0) == 1) UnmapShared();
  syscall(SYS_exit_group, 0);
  return 0;
}

}  // namespace

void Prefault(LeftOut left_out) {
  const std::vector<Range> ranges = MappedRanges();
  const bool alone = CountThreads() == 1;
  const auto out = reinterpret_cast<uintptr_t>(left_out.begin);
  for (const Range& range : ranges) {
    // A range is never partly left out: only whole mappings are.
    if (range.begin < out + left_out.bytes && out < range.end) continue;
    const bool populated = madvise(reinterpret_cast<void*>(range.begin), range.end - range.begin,
                                   range.writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0;
    if (populated && alone) Touch(range);
  }
}

absl::Status StartUnmapper([[maybe_unused]] int kept) {
#ifdef BATON_SANITIZED
  return absl::UnimplementedError("a sanitizer has memory of its own");
#endif
  BATON_ASSIGN_OR_RETURN(const FileDescriptor process, OpenPidfd(getpid()));
  g_unmapper.process = process.get();
  g_unmapper.kept = kept;
  // The unmapper inherits this mask, so no signal handler of this process runs in it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t unmapper = clone(&Run, g_unmapper.stack + kStackBytes, CLONE_VM, nullptr);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (unmapper < 0) return ErrnoStatus(error, "clone (see RLIMIT_NPROC, pids.max)");
  for (const uint64_t deadline = MonotonicNanoseconds() + kStartNs; !g_unmapper.started.load();) {
    if (waitpid(unmapper, nullptr, WNOHANG | __WCLONE) == unmapper) {
      return absl::InternalError("the unmapper has ended, because it could not close descriptors");
    }
    if (MonotonicNanoseconds() > deadline) {
      kill(unmapper, SIGKILL);
      waitpid(unmapper, nullptr, __WCLONE);
      return absl::DeadlineExceededError("the unmapper got no processor for a second");
    }
    sched_yield();
  }
  return absl::OkStatus();
}

}  // namespace baton::native
