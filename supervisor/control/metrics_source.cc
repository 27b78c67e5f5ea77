#include "supervisor/control/metrics_source.h"

#include <unistd.h>

#include <iterator>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/version.h"
#include "supervisor/control/certificates.h"

namespace baton {
namespace {

constexpr uint64_t kPatienceNs = 3'000'000'000;

void Append(std::vector<prometheus::MetricFamily> more,
            std::vector<prometheus::MetricFamily>* families) {
  std::move(more.begin(), more.end(), std::back_inserter(*families));
}

}  // namespace

MetricsSource::MetricsSource(Keepers* keepers, const AuditTrail* trail,
                             std::function<v1::OperatorEndpoint()> endpoint, Open open,
                             std::function<pid_t()> batond)
    : keepers_(keepers),
      trail_(trail),
      endpoint_(std::move(endpoint)),
      open_(std::move(open)),
      batond_(std::move(batond)),
      started_ns_(MonotonicNanoseconds()) {}

// Reads the certificates anew each time, because the files may be replaced.
metrics::Family MetricsSource::Certificates() const {
  auto expiry =
      metrics::Family::Gauge("baton_certificate_expiry_timestamp_seconds",
                             "When the first certificate in a file of operator_endpoint ends, in "
                             "seconds since 1970.");
  const v1::OperatorEndpoint endpoint = endpoint_();  // the present configuration
  const std::pair<const char*, const std::string*> files[] = {
      {"certificate_file", &endpoint.certificate_file()},
      {"client_ca_file", &endpoint.client_ca_file()}};
  for (const auto& [field, path] : files) {
    if (path->empty()) continue;
    absl::StatusOr<FileDescriptor> file = open_(*path);
    if (!file.ok()) continue;
    if (const auto end = CertificateExpiry(*std::move(file))) {
      expiry.Add({{"file", field}}, static_cast<double>(*end));
    }
  }
  return expiry;
}

std::vector<prometheus::MetricFamily> MetricsSource::Collect() const {
  using metrics::Family;
  auto build = Family::Gauge("baton_build_info", "1, with the release that control is of.");
  build.Add({{"release", kRelease}}, 1);
  auto uptime = Family::Gauge("baton_control_uptime_seconds", "Since control was started.");
  uptime.Add({}, static_cast<double>(MonotonicNanoseconds() - started_ns_) * 1e-9);
  auto unrecorded = Family::Counter("baton_audit_write_failures_total",
                                    "Records of what operators did that could not be written.");
  unrecorded.Add({}, static_cast<double>(trail_->failed_writes()));
  std::vector<prometheus::MetricFamily> families =
      metrics::NotEmpty({build, uptime, unrecorded, Certificates()});

  std::vector<metrics::DescribedService> services = keepers_->DescribeAll(kPatienceNs);
  std::vector<metrics::ObservedProcess> processes = {{"control", "", getpid()}};
  if (const pid_t batond = batond_(); batond != 0) processes.push_back({"batond", "", batond});
  for (const auto& [name, described] : services) {
    if (!described.ok()) continue;
    const v1::Service& service = described->service();
    processes.push_back({"keeper", name, service.keeper_pid()});
    if (service.driver_pid() != 0 && service.driver_pid() != service.keeper_pid()) {
      processes.push_back({"driver", name, service.driver_pid()});
    }
    if (service.driver_twin_pid() != 0) {
      processes.push_back({"driver_twin", name, service.driver_twin_pid()});
    }
    if (service.broker_pid() != 0) processes.push_back({"broker", name, service.broker_pid()});
    if (service.twin_pid() != 0) processes.push_back({"twin", name, service.twin_pid()});
  }
  Append(metrics::ServiceFamilies(services), &families);
  Append(metrics::DeviceFamilies(services), &families);
  Append(metrics::ProcessFamilies(processes), &families);
  families.push_back(events_.Collect());
  return families;
}

}  // namespace baton
