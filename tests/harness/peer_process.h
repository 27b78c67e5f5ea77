// A running baton-peer, and the JSON objects that it and other programs print.
#ifndef TESTS_HARNESS_PEER_PROCESS_H_
#define TESTS_HARNESS_PEER_PROCESS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/fabric.h"

namespace google::protobuf {
class Struct;
}

namespace baton::harness {

// Fields are read by dotted paths. Missing ones read as zero, so a test that needs one asks Has
// first or compares with what cannot be zero.
class JsonObject {
 public:
  static absl::StatusOr<JsonObject> Parse(const std::string& text);

  bool Has(const std::string& path) const;
  double Number(const std::string& path) const;
  uint64_t Count(const std::string& path) const { return static_cast<uint64_t>(Number(path)); }
  bool Flag(const std::string& path) const;
  const std::string& text() const { return text_; }

 private:
  std::shared_ptr<const google::protobuf::Struct> object_;
  std::string text_;
};

struct PeerOptions {
  std::string program;  // path of baton-peer
  std::string log_path;
  std::string timeline_path;  // empty: none
  verbs::testing::Fabric fabric;
  uint16_t port = 0;  // of the service
  uint32_t connections = 1;
  uint32_t active = 0;  // of them, that carry load; 0: all
  uint32_t window = 8;
  uint64_t rate = 0;
  uint32_t message_bytes = 64;
  bool reconnect = false;
  std::vector<std::string> arguments;  // further ones
};

// What the peer saw between two marks.
struct PeerWindow {
  double max_silence_us = 0;  // of active connections
  uint64_t messages = 0;
  uint32_t connections_with_reply = 0;
  uint64_t disconnects = 0;
  std::array<uint32_t, 3> last_versions = {};  // connections by version of their latest reply
  uint32_t spares = 0;                         // connections to a service that stands by
  double seconds = 0;
};

class PeerProcess {
 public:
  // Returns when every connection is established.
  static absl::StatusOr<std::unique_ptr<PeerProcess>> Start(const PeerOptions& options);

  // Ends the current window.
  absl::StatusOr<PeerWindow> Mark(const std::string& name);
  // Until each connection has been answered a request that was made after this call.
  absl::Status Settle(std::chrono::milliseconds timeout = std::chrono::seconds(15));
  // The same of the active connections alone.
  absl::Status SettleActive(std::chrono::milliseconds timeout = std::chrono::seconds(15));
  // Until it has `count` connections to a service that stands by. Ends the current window.
  absl::Status AwaitSpares(uint32_t count,
                           std::chrono::milliseconds timeout = std::chrono::seconds(60));
  absl::Status SetRate(uint64_t rate);
  // Stops sending, waits for the last replies and for the end of the process. The result is not
  // judged here: see its "ok".
  absl::StatusOr<JsonObject> Stop(std::chrono::milliseconds timeout = std::chrono::seconds(30));
  // Stop(), and judges the result. kDataLoss: the peer missed something, or was disconnected though
  // it may not be.
  absl::StatusOr<JsonObject> StopChecked();

  ChildProcess& process() { return *process_; }

 private:
  explicit PeerProcess(std::unique_ptr<ChildProcess> process) : process_(std::move(process)) {}
  // The next line that begins so. kAborted: the peer has stopped by itself, its result is kept.
  absl::StatusOr<std::string> ReadAnswer(const std::string& beginning,
                                         std::chrono::milliseconds timeout);

  std::unique_ptr<ChildProcess> process_;
  std::string result_;  // its final line, when that came unasked
};

// A peer that always has something to ask, and checks each answer. It leaves the processors to what
// a test does meanwhile.
inline PeerOptions SteadyLoad() {
  PeerOptions load;
  load.connections = 8;
  load.rate = 500;
  return load;
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_PEER_PROCESS_H_
