// The part that the chapters of worker/guide.md share: a service that answers each message of a
// peer with one message, in order. A chapter says only what the answer is.
#ifndef WORKER_EXAMPLES_GUIDE_REPLY_SERVICE_H_
#define WORKER_EXAMPLES_GUIDE_REPLY_SERVICE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/worker.h"

namespace baton::guide {

// Thread-safety: like Worker.
class ReplyService : public Service {
 public:
  void OnCompletion(Shard& shard, const Completion& done) override;

  // Returns why the program cannot serve with this capacity. Serve ends with that error.
  virtual absl::Status Check(const Capacity&) { return absl::OkStatus(); }

 protected:
  // Messages that a peer may send before it has an answer, and their largest size.
  static constexpr uint32_t kWindow = 16, kBytes = 256;

  // Returns the answer to `message`, at most kBytes. After an error the peer is disconnected, and
  // what was staged for this message has no effect.
  virtual absl::StatusOr<std::string> Reply(Shard& shard, Connection& connection,
                                            const std::string& message) = 0;
  // Sends the answer to `message`, with `tag`: by default, what Reply returns.
  virtual absl::Status Answer(Shard& shard, Connection& connection, const std::string& message,
                              uint64_t tag);
  static absl::Status SendText(Shard& shard, Connection& connection, std::string_view text,
                               uint64_t tag);

  // Returns the offset of the first buffer byte that this class does not use.
  static uint64_t FreeBuffers(const Worker& worker) {
    return uint64_t{worker.capacity().connections} * 2 * kWindow * kBytes;
  }

 private:
  // A reply has a buffer of its own. If this worker dies before its commit, the successor receives
  // the same completion and needs the message as it came.
  static uint64_t MessageOffset(const Connection& connection, uint64_t tag) {
    return (uint64_t{connection.index()} * 2 * kWindow + tag) * kBytes;
  }
  static uint64_t ReplyOffset(const Connection& connection, uint64_t tag) {
    return MessageOffset(connection, kWindow + tag);
  }
  static absl::Status Receive(Shard& shard, Connection& connection, uint64_t tag);
  static std::string MessageOf(const Shard& shard, const Completion& done);
};

// Attaches to the socket that the first argument names, listens at the address that the second
// names, if there is one, and serves until the worker is asked to end. Returns the exit status.
int Serve(ReplyService& service, WorkerOptions options, int argc, char** argv);

}  // namespace baton::guide

#endif  // WORKER_EXAMPLES_GUIDE_REPLY_SERVICE_H_
