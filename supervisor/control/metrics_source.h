// Collects control's own metrics, and those of the keepers' services, processes and events.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_METRICS_SOURCE_H_
#define SUPERVISOR_CONTROL_METRICS_SOURCE_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "prometheus/collectable.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/control/audit_trail.h"
#include "supervisor/control/keepers.h"
#include "supervisor/metrics/families.h"

namespace baton {

class MetricsSource final : public prometheus::Collectable {
 public:
  using Open = std::function<absl::StatusOr<FileDescriptor>(const std::string& path)>;

  // `keepers` and `trail` must outlive it. `endpoint` returns the endpoint whose certificates are
  // reported; `open` opens their files for reading. `batond` returns batond's pid; 0: not known.
  MetricsSource(Keepers* keepers, const AuditTrail* trail,
                std::function<v1::OperatorEndpoint()> endpoint, Open open,
                std::function<pid_t()> batond);

  // Takes up to 3 s if a keeper does not answer.
  std::vector<prometheus::MetricFamily> Collect() const override;

  void NoteEvent(const std::string& service, const v1::Event& event) {
    events_.Note(service, event);
  }

 private:
  metrics::Family Certificates() const;

  Keepers* const keepers_;
  const AuditTrail* const trail_;
  const std::function<v1::OperatorEndpoint()> endpoint_;
  const Open open_;
  const std::function<pid_t()> batond_;
  const uint64_t started_ns_;
  metrics::EventCounts events_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_METRICS_SOURCE_H_
