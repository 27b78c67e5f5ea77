// Metrics of the retries and the congestion that devices count in /sys/class/infiniband.
#ifndef SUPERVISOR_METRICS_DEVICE_FAMILIES_H_
#define SUPERVISOR_METRICS_DEVICE_FAMILIES_H_

#include <string>
#include <vector>

#include "prometheus/metric_family.h"
#include "supervisor/metrics/service_families.h"

namespace baton::metrics {

// Lists each port that a reachable service uses, once. Leaves out a counter that the device's
// driver does not have. The label `counter` is the driver's own name of it, one of a fixed list.
std::vector<prometheus::MetricFamily> DeviceFamilies(
    const std::vector<DescribedService>& all, const std::string& devices = "/sys/class/infiniband");

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_DEVICE_FAMILIES_H_
