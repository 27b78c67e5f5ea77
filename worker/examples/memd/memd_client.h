// A client of memd (memd_protocol.h): leases memory, and works on it with RDMA. It knows nothing of
// Baton; a program with libibverbs and librdmacm would do the same.
//
//   auto client = MemdClient::Connect(std::move(device), {"10.0.0.1", 7475}, {});
//   auto lease = (*client)->Allocate({.bytes = 4096, .milliseconds = 60'000});
//   (*client)->Write(lease->memory, 0, bytes);
//   (*client)->FetchAdd(lease->memory, 4088, 1);
//   (*client)->Notify(*lease, 0, {});
#ifndef WORKER_EXAMPLES_MEMD_MEMD_CLIENT_H_
#define WORKER_EXAMPLES_MEMD_MEMD_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/shared_memory.h"
#include "worker/examples/memd/memd_protocol.h"

namespace baton::memd {

// Memory of memd to which this client has access. Another client of the same service may be given
// these numbers, and then has it, too.
struct RemoteMemory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t rkey = 0;
  uint32_t rights = kAllRights;
  // An access after this ends the connection. The time is a little early, and max() if the lease
  // has no end before its connection.
  std::chrono::steady_clock::time_point ends = std::chrono::steady_clock::time_point::max();
};

struct RemoteLease {
  uint32_t id = 0;
  RemoteMemory memory;
  uint64_t notices = 0;         // that memd has counted in it
  uint32_t server_version = 0;  // of the binary that has answered
};

struct AllocateOptions {
  uint64_t bytes = 0;
  uint32_t rights = kAllRights;
  uint64_t milliseconds = 0;  // 0: as long as the connection
  // From NewNumber(). If a call with a number returns kDeadlineExceeded, another with the same
  // options returns the lease that the first may have made. 0: any number.
  uint64_t number = 0;
};

struct MemdClientOptions {
  // The longest time that a call takes.
  std::chrono::milliseconds patience = std::chrono::minutes(2);
};

// Errors of all calls:
//   kUnavailable: the connection has ended; the message says why.
//   kDeadlineExceeded: no answer within the patience, or memd has none of its keeper. A request
//     (Allocate, Free, Renew, Stat) may be repeated. After another call nobody knows whether it was
//     executed, and the connection can be used no more.
//   kInvalidArgument: the message names the field.
// and those that memd answers with, and its reason: kResourceExhausted, kNotFound, kAlreadyExists.
// The calls that work on memory refuse what would end the connection: kOutOfRange: not within the
// memory. kPermissionDenied: the rights do not allow it. kFailedPrecondition: its time is over.
//
// Thread-compatible. Calls block: one at a time is under way.
class MemdClient {
 public:
  // The client owns `device`, which serves no other.
  static absl::StatusOr<std::unique_ptr<MemdClient>> Connect(std::unique_ptr<verbs::Device> device,
                                                             const verbs::Address& address,
                                                             const MemdClientOptions& options);
  ~MemdClient();

  const Greeting& greeting() const { return greeting_; }  // memd's limits for this connection
  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }
  uint64_t NewNumber() { return ++last_number_; }

  // The memory is zeros.
  absl::StatusOr<RemoteLease> Allocate(const AllocateOptions& options);
  // OK also if the lease is gone already.
  absl::Status Free(uint32_t lease);
  // The lease ends so long from now; 0: with the connection.
  absl::StatusOr<RemoteLease> Renew(uint32_t lease, uint64_t milliseconds);
  absl::StatusOr<RemoteLease> Stat(uint32_t lease);

  // Both take any length.
  absl::Status Read(const RemoteMemory& memory, uint64_t offset, absl::Span<uint8_t> bytes);
  absl::Status Write(const RemoteMemory& memory, uint64_t offset, absl::Span<const uint8_t> bytes);
  // Return the 8 bytes that were at `offset`, a multiple of 8.
  absl::StatusOr<uint64_t> FetchAdd(const RemoteMemory& memory, uint64_t offset, uint64_t addend);
  absl::StatusOr<uint64_t> CompareSwap(const RemoteMemory& memory, uint64_t offset,
                                       uint64_t expected, uint64_t desired);
  // Writes, and then gives notice in the lease. Asks memd for credit first if need be.
  absl::Status Notify(const RemoteLease& lease, uint64_t offset, absl::Span<const uint8_t> bytes);

 private:
  // READs and WRITEs are divided into pieces, of which so many are outstanding.
  static constexpr uint32_t kPieceBytes = 64 * 1024;
  static constexpr uint32_t kDepth = 8;

  // A transfer between `memory` and one of `from` and `to`.
  struct Transfer {
    const RemoteMemory& memory;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    const uint8_t* from = nullptr;
    uint8_t* to = nullptr;
    std::optional<uint32_t> notice = {};
  };

  MemdClient(std::unique_ptr<verbs::Device> device, examples::SharedMemory memory,
             std::chrono::milliseconds patience)
      : device_(std::move(device)), memory_(std::move(memory)), patience_(patience) {}

  absl::Status Open(const verbs::Address& address);
  absl::Status PostReceive(uint64_t number);
  absl::Status PostSend(verbs::SendRequest request, const uint8_t* bytes, uint64_t length);
  absl::StatusOr<RemoteLease> AskForLease(Request request);
  absl::StatusOr<Reply> Ask(Request request);
  absl::Status Move(const Transfer& transfer);
  absl::Status PostPiece(const Transfer& transfer, uint64_t piece);
  absl::StatusOr<uint64_t> Atomic(const RemoteMemory& memory, uint64_t offset,
                                  verbs::SendRequest request);
  absl::Status WaitForTransfer(uint64_t done);
  absl::Status CheckUsable() const;

  absl::Status Look();
  void OnCompletion(const verbs::Completion& completion);
  void OnReply(uint64_t number, uint32_t bytes);
  void OnEvent(const verbs::CmEvent& event);
  void NoteEnd(std::string_view why);
  absl::Status WaitFor(std::string_view what, absl::FunctionRef<bool()> is_there);

  uint8_t* RequestPlace(uint64_t number) const;
  uint8_t* ReplyPlace(uint64_t number) const;
  uint8_t* PiecePlace(uint64_t number) const;

  const std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;  // requests, replies, pieces
  std::chrono::milliseconds patience_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  Greeting greeting_ = {};
  bool established_ = false;
  std::string end_;  // why the connection has ended, or can be used no more
  uint64_t last_number_ = 0, last_asked_ = 0;  // of requests
  uint64_t requests_ = 0, requests_sent_ = 0, replies_ = 0;
  uint64_t transfers_done_ = 0;                 // pieces and atomics
  uint64_t notices_ = 0, notices_counted_ = 0;  // of this connection
  uint64_t awaited_ = 0;                        // number of a request; 0: none
  std::optional<Reply> answer_;                 // to it
};

}  // namespace baton::memd

#endif  // WORKER_EXAMPLES_MEMD_MEMD_CLIENT_H_
