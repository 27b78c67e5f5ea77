// Reads a service's metrics from its arena, for when no process is left that could be asked.
#ifndef SUPERVISOR_METRICS_ARENA_FAMILIES_H_
#define SUPERVISOR_METRICS_ARENA_FAMILIES_H_

#include <vector>

#include "prometheus/metric_family.h"
#include "proto/baton/v1/inspect.pb.h"

namespace baton::metrics {

// Under the names, and with the labels, that ServiceFamilies has; those of them that an arena
// knows.
std::vector<prometheus::MetricFamily> ArenaFamilies(const v1::Inspection& inspection);

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_ARENA_FAMILIES_H_
