#include "supervisor/control/metrics_source.h"

#include <unistd.h>

#include <iterator>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/version.h"
#include "supervisor/metrics/family.h"
#include "supervisor/metrics/process_families.h"
#include "supervisor/metrics/service_families.h"

namespace baton {
namespace {

constexpr uint64_t kPatienceNs = 3'000'000'000;

void Append(std::vector<prometheus::MetricFamily> more,
            std::vector<prometheus::MetricFamily>* families) {
  std::move(more.begin(), more.end(), std::back_inserter(*families));
}

}  // namespace

MetricsSource::MetricsSource(Keepers* keepers, pid_t batond)
    : keepers_(keepers),
      batond_(batond),
      started_ns_(MonotonicNanoseconds()),
      events_(UnixMicroseconds()) {}

std::vector<prometheus::MetricFamily> MetricsSource::Collect() const {
  auto build =
      metrics::Family::Gauge("baton_build_info", "1, with the release that control is of.");
  build.Add({{"release", kRelease}}, 1);
  auto uptime =
      metrics::Family::Gauge("baton_control_uptime_seconds", "Since control was started.");
  uptime.Add({}, static_cast<double>(MonotonicNanoseconds() - started_ns_) * 1e-9);
  std::vector<prometheus::MetricFamily> families = {build.get(), uptime.get()};

  std::vector<metrics::DescribedService> services = keepers_->DescribeAll(kPatienceNs);
  std::vector<metrics::ObservedProcess> processes = {{"control", "", getpid()}};
  if (batond_ != 0) processes.push_back({"batond", "", batond_});
  for (const auto& [name, described] : services) {
    if (described.ok()) processes.push_back({"keeper", name, described->service().keeper_pid()});
  }
  Append(metrics::ServiceFamilies(services), &families);
  Append(metrics::ProcessFamilies(processes), &families);
  families.push_back(events_.Collect());
  return families;
}

}  // namespace baton
