// A peer of the guide's services: sends lines over one connection and receives their answers. It
// knows nothing of Baton; a program with libibverbs and librdmacm would do the same.
#ifndef WORKER_EXAMPLES_GUIDE_LINE_CLIENT_H_
#define WORKER_EXAMPLES_GUIDE_LINE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::guide {

// One request is outstanding at a time. Each wait is bounded: kDeadlineExceeded after two minutes.
// kUnavailable: the connection has ended. Thread-compatible.
class LineClient {
 public:
  // The client owns `device`, which serves no other.
  static absl::StatusOr<std::unique_ptr<LineClient>> Connect(std::unique_ptr<verbs::Device> device,
                                                             const verbs::Address& address);
  ~LineClient();

  // Sends a line of at most 256 bytes and returns the answer.
  absl::StatusOr<std::string> Ask(std::string_view line);

  // Reads 8 bytes of the service's memory with an RDMA READ.
  absl::StatusOr<uint64_t> Read(uint64_t remote_address, uint32_t rkey);

  // Waits until the service ends the connection.
  absl::Status WaitUntilDisconnected();

 private:
  LineClient(std::unique_ptr<verbs::Device> device, examples::SharedMemory memory)
      : device_(std::move(device)), memory_(std::move(memory)) {}
  absl::Status Open(const verbs::Address& address);
  absl::Status PostReceive();
  absl::Status Send(verbs::SendRequest request, uint32_t length);
  absl::Status Look();
  absl::Status WaitFor(const char* what, const bool& condition);

  const std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;  // first what is sent or was read, then what is received
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::string end_;  // why the connection has ended
  uint32_t received_bytes_ = 0;
  bool established_ = false, ended_ = false, sent_ = false, received_ = false;
};

}  // namespace baton::guide

#endif  // WORKER_EXAMPLES_GUIDE_LINE_CLIENT_H_
