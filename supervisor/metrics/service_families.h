// Metrics of services, from their keepers' descriptions. Labels are bounded: the configured
// services, their shards (at most 64 each), and fixed words. No worker, connection or address is a
// label.
#ifndef SUPERVISOR_METRICS_SERVICE_FAMILIES_H_
#define SUPERVISOR_METRICS_SERVICE_FAMILIES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/metric_family.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::metrics {

// By name. Of a service whose keeper does not answer there is baton_service_up, 0, and nothing
// else.
using DescribedService = std::pair<std::string, absl::StatusOr<internal::Description>>;

std::vector<prometheus::MetricFamily> ServiceFamilies(const std::vector<DescribedService>& all);

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_SERVICE_FAMILIES_H_
