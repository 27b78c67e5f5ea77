// Checks the clocks: what reading the time costs, and whether the clock is synchronized.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr char kSource[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
// Clock sources that the kernel reads over a bus (drivers/clocksource/). Each reading takes a
// microsecond and a system call.
constexpr const char* kSlow[] = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"};

}  // namespace

void CheckClock(const View& view, Report& report) {
  const std::string source = view.machine.Read(kSource).value_or("");
  const bool slow = std::find(std::begin(kSlow), std::end(kSlow), source) != std::end(kSlow);
  if (slow) {
    report.Add(v1::SEVERITY_WARNING, {"clock"},
               {absl::StrCat("the kernel tells the time by ", source),
                "each look at it is a system call that takes microseconds, and engines look often: "
                "rates are lower and blackouts longer",
                absl::StrCat("echo tsc >", kSource,
                             "  # for good: clocksource=tsc tsc=reliable on the kernel's command "
                             "line, where the processor has constant_tsc")});
  }
  const std::optional<bool> synchronized = view.machine.ClockIsSynchronized();
  if (synchronized == false) {
    report.Add(v1::SEVERITY_WARNING, {"clock", "UTC"},
               {"nobody keeps the clock of this machine right",
                "times of events cannot be compared with those of peers and of other logs; what "
                "Baton waits for and measures is by another clock, which does not mind",
                "apt-get install systemd-timesyncd && timedatectl set-ntp true"});
  }
  if (slow || synchronized == false) return;
  report.Ok({"clock"}, absl::StrCat(source.empty() ? "of an unknown source" : "by " + source,
                                    synchronized ? ", synchronized" : ""));
}

}  // namespace baton::doctor
