// Metrics of the resources that a Baton's processes use, from /proc.
#ifndef SUPERVISOR_METRICS_PROCESS_FAMILIES_H_
#define SUPERVISOR_METRICS_PROCESS_FAMILIES_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "prometheus/metric_family.h"

namespace baton::metrics {

struct ObservedProcess {
  std::string program;  // "batond", "control", "driver", "keeper"
  std::string service;  // of a driver or keeper
  pid_t pid = 0;
};

// One that has ended is left out, and so are the descriptors of one that we may not look into.
std::vector<prometheus::MetricFamily> ProcessFamilies(const std::vector<ObservedProcess>& all);

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_PROCESS_FAMILIES_H_
