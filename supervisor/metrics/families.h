// Metrics of services, of their devices, and of the processes. Labels are bounded: the configured
// services, their shards (at most 64 each), and fixed words. No worker, connection or address is a
// label.
#ifndef SUPERVISOR_METRICS_FAMILIES_H_
#define SUPERVISOR_METRICS_FAMILIES_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/metric_family.h"
#include "proto/baton/internal/keeper.pb.h"
#include "proto/baton/v1/inspect.pb.h"

namespace baton::metrics {

// A service's name and description. A service whose keeper does not answer has only
// baton_service_up, which is 0.
using DescribedService = std::pair<std::string, absl::StatusOr<internal::Description>>;

std::vector<prometheus::MetricFamily> ServiceFamilies(const std::vector<DescribedService>& all);

// Reads a service's metrics from its arena, if no process is left to ask.
//
// Names and labels are those of ServiceFamilies. Metrics that are not in an arena are missing.
std::vector<prometheus::MetricFamily> ArenaFamilies(const v1::Inspection& inspection);

// Metrics of the retries and the congestion that devices count in /sys/class/infiniband.
//
// Lists each port that a reachable service uses, once. Leaves out a counter that the device's
// driver does not have. The label `counter` is the driver's own name of a counter, one of a fixed
// list.
std::vector<prometheus::MetricFamily> DeviceFamilies(
    const std::vector<DescribedService>& all, const std::string& devices = "/sys/class/infiniband");

struct ObservedProcess {
  std::string program;  // "batond", "control", "driver", "keeper"
  std::string service;  // the service of a driver or keeper
  pid_t pid = 0;
};

// Metrics of the resources that Baton's processes use, from /proc. Leaves out processes that have
// ended, and the descriptors of processes that may not be looked into.
std::vector<prometheus::MetricFamily> ProcessFamilies(const std::vector<ObservedProcess>& all);

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_FAMILIES_H_
