// A client of filed: one connection, without Baton. baton-get uses it, and tests do.
#ifndef WORKER_EXAMPLES_FILED_GET_CLIENT_H_
#define WORKER_EXAMPLES_FILED_GET_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/stream/file_pieces.h"
#include "lib/stream/peer_stream.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/shared_memory.h"
#include "worker/examples/filed/filed_protocol.h"

namespace baton::filed {

// Thread-compatible. It never connects a second time: when the connection ends, Turn fails.
class GetClient {
 public:
  // Receives what is checked: each belongs to an unanswered request. An error ends Turn.
  class Sink {
   public:
    virtual ~Sink() = default;
    // The next bytes of a range, in order; `last`: the request is answered. `bytes` are valid
    // during the call.
    virtual absl::Status OnPiece(uint64_t id, uint64_t offset, absl::Span<const uint8_t> bytes,
                                 bool last) = 0;
    // The request is answered. A kGet only has one with an error.
    virtual absl::Status OnReply(const DecodedReply& reply) = 0;
  };

  // The client owns `device`, which serves no other. kUnavailable: the server rejects the
  // connection, or nobody listens there. kDeadlineExceeded: no answer within `patience`.
  static absl::StatusOr<std::unique_ptr<GetClient>> Connect(
      std::unique_ptr<verbs::Device> device, const verbs::Address& address,
      std::chrono::milliseconds patience = std::chrono::minutes(2));
  ~GetClient();

  bool may_ask() const { return unanswered_.size() < kMaxRequests; }
  size_t unanswered() const { return unanswered_.size(); }
  // Returns the request's number, which the answer has. REQUIRES: may_ask(). The request is sent
  // when the server has room for it.
  uint64_t List(const std::string& path, const std::string& after);
  uint64_t Stat(const std::string& path);
  // REQUIRES: length > 0. `info`: the file's, as the server has said.
  uint64_t Get(const std::string& path, const FileInfo& info, uint64_t offset, uint64_t length);
  // The request is answered with kCanceled, unless its whole answer is on the way already.
  void Cancel(uint64_t id);

  // Sends what was asked, and takes what has come. Waits a little if nothing has. kUnavailable: the
  // connection has ended. kDeadlineExceeded: nothing has come for as long as `patience`, while
  // requests were unanswered. kDataLoss and kInvalidArgument: the server has sent something wrong.
  absl::Status Turn(Sink& sink);

 private:
  struct Unanswered {
    RequestKind kind;
    std::optional<stream::PieceChecker> pieces;  // of a kGet
  };
  using Clock = std::chrono::steady_clock;

  GetClient(std::unique_ptr<verbs::Device> device, examples::SharedMemory memory,
            std::chrono::milliseconds patience)
      : device_(std::move(device)), memory_(std::move(memory)), patience_(patience) {}
  absl::Status Open(const verbs::Address& address);
  uint64_t Ask(RequestKind kind, DecodedRequest request);
  absl::Status SendAsked();
  absl::StatusOr<bool> Look(Sink* sink);
  absl::Status TakeEvents();
  absl::Status TakeMessage(Sink& sink, absl::Span<const uint8_t> message);
  absl::Status TakePiece(Sink& sink, absl::Span<const uint8_t> message);
  absl::Status Await(Sink* sink);

  const std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;
  const std::chrono::milliseconds patience_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<stream::PeerStream> stream_;
  std::unique_ptr<verbs::ConnectionId> id_;
  bool established_ = false;
  uint64_t last_request_ = 0;
  std::map<uint64_t, Unanswered> unanswered_;  // by the request's number
  std::deque<std::string> to_send_;            // requests for which the server has no room yet
  Clock::time_point last_news_ = Clock::now();
};

}  // namespace baton::filed

#endif  // WORKER_EXAMPLES_FILED_GET_CLIENT_H_
