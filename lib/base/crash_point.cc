#include "lib/base/crash_point.h"

#ifdef BATON_TEST_HOOKS

#include <signal.h>
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

void (*g_handler)(const char* name) = nullptr;

}  // namespace

void SetCrashPointHandler(void (*handler)(const char* name)) { g_handler = handler; }

void PassCrashPoint(const char* name) {
  if (g_handler) return g_handler(name);
  static Plan plan = ReadPlan();
  if (plan.left == 0 || plan.name != name) return;
  if (--plan.left == 0) kill(getpid(), SIGKILL);
}

}  // namespace baton

#endif
