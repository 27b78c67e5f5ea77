// A worker's stream to control, which carries policy: notices of handoffs, the wish that the worker
// ends, the worker's health. Ownership is in shared memory and does not need the stream. So the
// worker serves while the stream is down, and a thread opens it again in the background.
//
// This header includes no gRPC. Nothing here throws into the host program or ends it.
#ifndef WORKER_CONTROL_STREAM_H_
#define WORKER_CONTROL_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

struct ControlStreamOptions {
  std::string control_socket;  // from the keeper
  std::string service;
  std::string first_token;  // empty: ask new_token at once

  // All three are called from the stream's own thread, one at a time, and not after Stop. What
  // they throw is ignored.
  //
  // Returns a token of the keeper's that was not used yet. Should not block for long: Stop waits
  // for it.
  std::function<absl::StatusOr<std::string>()> new_token;
  std::function<void(const std::vector<uint32_t>& shards)> on_handoff;
  std::function<void(const std::string& reason)> on_shutdown;
};

class ControlStream {
 public:
  // Returns at once, whether control is there or not.
  static absl::StatusOr<std::unique_ptr<ControlStream>> Start(ControlStreamOptions options);
  ~ControlStream();  // stops

  // Closes the stream and joins its thread. Not from a callback.
  void Stop();

  // Reports the worker's health to control as soon as control is there, and again on each new
  // stream. Only the latest report counts. Thread-safe. Never waits for control.
  void ReportHealth(bool healthy, std::string_view detail);

  // Returns OK if control has welcomed this worker, else the error of the last attempt.
  // Thread-safe.
  absl::Status status() const;

 private:
  class Impl;
  explicit ControlStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton

#endif  // WORKER_CONTROL_STREAM_H_
