// A peer of the guide's services: sends lines over one connection and receives their answers. It
// knows nothing of Baton; a program with libibverbs and librdmacm would do the same.
#ifndef WORKER_EXAMPLES_GUIDE_LINE_CLIENT_H_
#define WORKER_EXAMPLES_GUIDE_LINE_CLIENT_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::guide {

// One send is outstanding at a time, and 16 receives are posted. Each wait is bounded:
// kDeadlineExceeded after `patience`. kUnavailable: the connection has ended.
// Thread-compatible.
class LineClient {
 public:
  static constexpr uint32_t kMostBytes = 4096;  // of a line

  // The client owns `device`, which serves no other.
  static absl::StatusOr<std::unique_ptr<LineClient>> Connect(
      std::unique_ptr<verbs::Device> device, const verbs::Address& address,
      std::chrono::seconds patience = std::chrono::minutes(2));
  ~LineClient();

  // Sends a line and returns the next one that is received.
  absl::StatusOr<std::string> Ask(std::string_view line);
  // Returns when the line is acknowledged.
  absl::Status Send(std::string_view line);
  absl::StatusOr<std::string> Receive();

  // Reads 8 bytes of the service's memory with an RDMA READ.
  absl::StatusOr<uint64_t> Read(uint64_t remote_address, uint32_t rkey);
  // Writes 8 bytes of the service's memory, and gives notice of it (WRITE_WITH_IMM).
  absl::Status Write(uint64_t remote_address, uint32_t rkey, uint64_t value, uint32_t immediate);

  // Waits until the service ends the connection.
  absl::Status WaitUntilDisconnected();

 private:
  static constexpr uint32_t kWindow = 16;  // receives

  LineClient(std::unique_ptr<verbs::Device> device, examples::SharedMemory memory,
             std::chrono::seconds patience)
      : device_(std::move(device)), memory_(std::move(memory)), patience_(patience) {}
  absl::Status Open(const verbs::Address& address);
  uint8_t* ReceiveBuffer(uint64_t number) const;
  absl::Status PostReceive(uint64_t number);
  absl::Status Post(verbs::SendRequest request, uint32_t length);
  absl::Status Look();
  absl::Status WaitFor(const char* what, const bool& condition);

  const std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;  // what is sent or was read, then the receives' buffers
  const std::chrono::seconds patience_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::string end_;                          // why the connection has ended
  std::array<uint32_t, kWindow> lengths_{};  // of lines, by buffer
  uint64_t completed_ = 0, taken_ = 0;       // receives, and lines that the caller got
  bool established_ = false, ended_ = false, sent_ = false, received_ = false;
};

}  // namespace baton::guide

#endif  // WORKER_EXAMPLES_GUIDE_LINE_CLIENT_H_
