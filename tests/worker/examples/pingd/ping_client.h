// The client's side of what pingd speaks (worker/examples/pingd/ping_protocol.h), on the seam of
// verbs: as `rping -c -V` and `rdma_client` do it, and stricter, so that no step that was lost or
// repeated goes unseen:
//   - the numbers in the server's messages have to be 1, 2, 3, …;
//   - the source is spoilt as soon as it was read, so a READ that is made again gets other data;
//   - the sink is spoilt as soon as it was compared, and has to be still when the next ping's data
//     was read, and at the end: a WRITE that is made again shows.
// Every wait is bounded. Thread-safety: none; a client is used by one thread at a time.
#ifndef TESTS_WORKER_EXAMPLES_PINGD_PING_CLIENT_H_
#define TESTS_WORKER_EXAMPLES_PINGD_PING_CLIENT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/shared_memory.h"
#include "worker/examples/pingd/ping_protocol.h"

namespace baton::pingd {

// A connection with the parameters of rping's, messages of 16 bytes, and one receive posted.
class ClientConnection {
 public:
  // `data_bytes`: of the source, and of the sink.
  static absl::StatusOr<std::unique_ptr<ClientConnection>> Connect(uint16_t port,
                                                                   uint32_t data_bytes);

  uint8_t* source() const { return memory_.base() + kDataAt; }
  uint8_t* sink() const { return source() + data_bytes_; }
  uint32_t data_bytes() const { return data_bytes_; }
  Advertisement SourceAddress() const;
  Advertisement SinkAddress() const;

  absl::Status Send(const Advertisement& advertisement);
  // The next message of the server's; its receive is posted again. kUnavailable: the connection
  // has ended instead.
  absl::StatusOr<ServerMessage> Receive();

  absl::Status Disconnect();
  absl::Status WaitUntilDisconnected();

 private:
  // Where the memory holds our message, the server's, and source and sink.
  static constexpr uint32_t kMessageAt = 0, kReceiveAt = 64, kDataAt = 128;
  ClientConnection(std::unique_ptr<verbs::Device> device, examples::SharedMemory memory,
                   uint32_t data_bytes)
      : device_(std::move(device)), memory_(std::move(memory)), data_bytes_(data_bytes) {}
  absl::Status Open(uint16_t port);
  absl::Status PostReceive();
  absl::Status Look();
  absl::Status WaitFor(const char* what, const bool& condition);

  std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;
  const uint32_t data_bytes_;
  std::unique_ptr<verbs::MemoryRegion> messages_, data_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::string end_;  // why it has ended
  bool established_ = false, disconnected_ = false, received_ = false;
};

// rping -c.
class PingClient {
 public:
  static absl::StatusOr<std::unique_ptr<PingClient>> Connect(uint16_t port, uint32_t data_bytes);

  // One ping: its data were read, written back, and are what they were.
  absl::Status Ping();
  // Nothing came after the last ping.
  absl::Status Disconnect();

  uint64_t pings() const { return pings_; }
  uint32_t version() const { return version_; }  // of the binary that sent the last message

 private:
  explicit PingClient(std::unique_ptr<ClientConnection> connection)
      : connection_(std::move(connection)) {}
  absl::Status AwaitGoAhead();
  absl::Status CheckSpoilt();

  std::unique_ptr<ClientConnection> connection_;
  uint64_t pings_ = 0;
  uint64_t messages_ = 0;
  uint32_t version_ = 0;
};

}  // namespace baton::pingd

#endif  // TESTS_WORKER_EXAMPLES_PINGD_PING_CLIENT_H_
