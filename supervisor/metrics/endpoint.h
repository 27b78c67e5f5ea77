// Metrics over HTTP, for Prometheus: GET /metrics.
#ifndef SUPERVISOR_METRICS_ENDPOINT_H_
#define SUPERVISOR_METRICS_ENDPOINT_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"

namespace baton::metrics {

// Serves `source` at `address`, ADDRESS:PORT, in threads of its own. If it cannot listen, it logs
// that and tries again, because nothing else must fail for want of metrics.
//
// Thread-safe.
class Endpoint {
 public:
  Endpoint(std::string address, std::shared_ptr<prometheus::Collectable> source,
           std::chrono::milliseconds retry = std::chrono::seconds(5));
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  int port() const;  // 0: it does not listen yet

 private:
  void Run();
  absl::Status Listen();

  const std::string address_;
  const std::shared_ptr<prometheus::Collectable> source_;
  const std::chrono::milliseconds retry_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;                         // guarded by mutex_
  std::unique_ptr<prometheus::Exposer> exposer_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_ENDPOINT_H_
