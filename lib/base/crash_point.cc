#include "lib/base/crash_point.h"

#ifdef BATON_TEST_HOOKS

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace baton {
namespace {

struct Plan {
  std::string name;
  long left = 0;
};

Plan ReadPlan() {
  Plan plan;
  const char* text = std::getenv("BATON_CRASH_AT");
  if (!text) return plan;
  const char* colon = std::strchr(text, ':');
  plan.name = colon ? std::string(text, colon) : std::string(text);
  plan.left = colon ? std::atol(colon + 1) : 1;
  return plan;
}

// Returns null if there is none. It stays mapped.
CrashPlan* MapPlan() {
  const char* path = std::getenv("BATON_CRASH_FILE");
  const int file = path != nullptr ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return nullptr;
  void* const memory =
      mmap(nullptr, sizeof(CrashPlan), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory != MAP_FAILED ? static_cast<CrashPlan*>(memory) : nullptr;
}

// Returns whether this is the last passing of the point that the plan has.
bool TakePassing(CrashPlan& plan, const char* name) {
  uint32_t left = plan.left.load(std::memory_order_acquire);
  while (left != 0 && std::strncmp(plan.name, name, CrashPlan::kNameBytes) == 0) {
    if (plan.left.compare_exchange_weak(left, left - 1)) return left == 1;
  }
  return false;
}

void (*g_handler)(const char* name) = nullptr;

}  // namespace

void SetCrashPointHandler(void (*handler)(const char* name)) { g_handler = handler; }

void PassCrashPoint(const char* name) {
  if (g_handler) return g_handler(name);
  static Plan plan = ReadPlan();
  static CrashPlan* const shared = MapPlan();
  if (shared != nullptr && TakePassing(*shared, name)) kill(getpid(), SIGKILL);
  if (plan.left == 0 || plan.name != name) return;
  if (--plan.left == 0) kill(getpid(), SIGKILL);
}

}  // namespace baton

#endif
