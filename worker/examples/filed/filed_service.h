// filed's service: files below one directory, for clients of filed_protocol.h.
//
// A connection's state has its stream, the requests that are not answered, and how far the transfer
// of the first one has come. A request moves from the stream's ring into the heap in the
// transaction that takes it, and leaves the heap in the one that ends its answer. So a successor
// finds every request, opens the file again, and goes on at the byte that is next. The file of a
// long transfer is held for it (worker/held_files.h).
#ifndef WORKER_EXAMPLES_FILED_FILED_SERVICE_H_
#define WORKER_EXAMPLES_FILED_FILED_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/stream/ring.h"
#include "worker/examples/filed/filed_protocol.h"
#include "worker/examples/filed/served_directory.h"
#include "worker/file_reads.h"
#include "worker/file_sender.h"
#include "worker/stream.h"
#include "worker/worker.h"

namespace baton::filed {

inline constexpr uint32_t kFiledStateVersion = 1;

// A request that is not answered. Its message is memory of the heap.
struct QueuedRequest {
  uint64_t id;
  uint64_t offset;
  uint32_t length;  // 0: the heap had no room for it
  uint8_t code;     // ReplyCode, with which it is to be answered; kOk: it is to be carried out
  uint8_t kind;     // RequestKind, if `length` is 0
  uint8_t reserved[2];
};
static_assert(sizeof(QueuedRequest) == 24);

// A connection's state, little-endian.
struct ClientState {
  stream::StreamState stream;
  FileTransfer transfer;  // of the first request; all zero: it has not begun
  uint32_t count;         // of requests
  uint8_t is_ending;      // 1: the connection is to be disconnected; no request is carried out
  uint8_t reserved[3];
  QueuedRequest requests[kMaxRequests];  // the first one is next
};
static_assert(offsetof(ClientState, transfer) == 128);
static_assert(offsetof(ClientState, requests) == 216);
static_assert(sizeof(ClientState) == 408);
static_assert(std::is_trivially_copyable_v<ClientState>);

struct FiledServiceOptions {
  std::string directory;
  FileReads::Options reads = {};
  FileSender::Options sender = {};
};

// Thread-safety: like Worker.
class FiledService final : public Service {
 public:
  explicit FiledService(const FiledServiceOptions& options) : options_(options) {}

  // Call it between Worker::Attach and Worker::Ready. An error's message says what the service's
  // configuration or the directory lacks.
  absl::Status Start(Worker& worker);

  absl::Status OnAdopt(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& completion) override;
  void OnRelease(Shard& shard) override;
  void OnLost(Shard& shard) override;
  void OnShutdown(std::string_view reason) override;

 private:
  // A connection as this worker has it.
  struct Session {
    Session(FileReads* reads, Connection* of, std::function<void()> wake)
        : connection(of),
          generation(of->generation()),
          shard(of->shard().index()),
          retry(reads, &of->shard(), std::move(wake)) {}

    Connection* const connection;
    const uint32_t generation, shard;
    ClientState state = {};
    ClientState saved = {};              // what is staged, or committed
    std::unique_ptr<FileSender> sender;  // of the first request
    FileRequester retry;                 // for what had no room in the heap or the transaction
  };
  enum class Outcome : uint8_t { kAnswered, kAgain, kWaits };

  static absl::Status Fit(const Worker& worker);
  Session* FindSession(Connection& connection);
  void DropSessions(const Shard& shard);
  absl::Status LoadAnew(Shard& shard);
  absl::Status FreeUnknown(Shard& shard, const std::vector<Connection*>& connections);
  void RetryAll(const std::vector<Connection*>& connections);

  void Dispatch(Shard& shard, const Completion& completion);
  void OnConnectRequest(Shard& shard, Connection& connection);
  static absl::Status Accept(Shard& shard, Connection& connection, const StreamRing& ring);
  static void Refuse(Shard& shard, Connection& connection, const absl::Status& why);
  void OnEnd(Shard& shard, const Completion& completion);
  void OnEvent(const Completion& completion);
  void Wake(Connection& connection);

  absl::Status Handle(Session& session, Stream& stream, const Completion& completion);
  absl::Status TakeRequest(Session& session, Stream& stream, const Buffer& message);
  absl::Status Enqueue(Session& session, Stream& stream, const DecodedRequest& request,
                       absl::Span<const uint8_t> message);
  void Cancel(Session& session, uint64_t id);
  void EndTransfer(Session& session);
  absl::Status Work(Session& session, Stream& stream);
  absl::StatusOr<Outcome> WorkOnFirst(Session& session, Stream& stream);
  absl::StatusOr<Outcome> Begin(Session& session, Stream& stream);
  absl::StatusOr<Outcome> BeginGet(Session& session, const DecodedRequest& request);
  absl::StatusOr<Outcome> Transfer(Session& session, Stream& stream);
  absl::Status Resume(Session& session);
  absl::StatusOr<Outcome> Answer(Session& session, Stream& stream, const DecodedReply& reply);
  void Pop(Session& session);
  static DecodedRequest RequestOf(const Session& session);
  Outcome FailFirst(Session& session, ReplyCode code);
  absl::StatusOr<bool> AwaitRoom(Session& session, Stream& stream, uint32_t length);
  absl::StatusOr<bool> SendReply(Session& session, Stream& stream, const DecodedReply& reply);

  void Free(Shard& shard, const Buffer& memory);
  void Save(Session& session, const Stream& stream);
  void End(Session& session, const absl::Status& why);
  void Disconnect(Session& session);

  const FiledServiceOptions options_;
  std::optional<ServedDirectory> directory_;
  std::unique_ptr<FileReads> reads_;
  std::vector<std::unique_ptr<Session>> sessions_;  // by the connection's index
  std::vector<std::vector<Buffer>> unfreed_;        // by shard: no transaction had room for it
};

}  // namespace baton::filed

#endif  // WORKER_EXAMPLES_FILED_FILED_SERVICE_H_
