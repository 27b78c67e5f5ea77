#include "tests/bench/baton_files.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace baton::bench {
namespace {

constexpr uint64_t kMinuteNs = 60'000'000'000;
// The service registers these. Its heap has the pieces that are read or under way: three of
// 1 MiB, and those that the peer has not acknowledged.
constexpr uint64_t kServiceHeapBytes = 6 << 20;
constexpr uint64_t kBufferBytes = 4096;
constexpr uint32_t kQueueDepth = 64;
constexpr uint32_t kMaxConnections = 4;

// The peer's end of the stream.
constexpr uint32_t kRingBytes = 16 << 20;
constexpr uint32_t kStagingBytes = 4096;
constexpr uint16_t kWindow = 32;
constexpr uint32_t kSends = 64;

class BatonWay final : public FileWay {
 public:
  BatonWay(BatonFiles* files, SendWay way, uint64_t bytes)
      : files_(*files), way_(way), bytes_(bytes) {}

  absl::Status Send() override { return files_.Fetch(way_, bytes_, /*checks=*/false); }
  uint64_t registered_bytes() const override { return BatonFiles::RegisteredFor(way_, bytes_); }
  absl::Status SendAndCheck() override { return files_.Fetch(way_, bytes_, /*checks=*/true); }

 private:
  BatonFiles& files_;
  const SendWay way_;
  const uint64_t bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BatonFiles>> BatonFiles::Start(SideName side,
                                                              const verbs::testing::Fabric& fabric,
                                                              const std::string& binary_directory) {
  ServerOptions options;
  options.device = fabric.device;
  options.host = fabric.host;
  options.binary_directory = binary_directory;
  options.worker_program = "bench-file-worker";
  options.max_connections = kMaxConnections;
  options.queue_depth = kQueueDepth;
  // Driver, worker, peer and the kernel's readers may share two processors, and a piece is under
  // way for longer than a process needs to wake up.
  options.batond_arguments = {"--yield-microseconds",
                              "1",
                              "--outside-effects",
                              "--shard-heap-bytes",
                              absl::StrCat(kServiceHeapBytes),
                              "--buffer-bytes",
                              absl::StrCat(kBufferBytes)};
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(side, options));
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory,
                         examples::SharedMemory::Allocate(kRingBytes + kStagingBytes));
  return std::unique_ptr<BatonFiles>(new BatonFiles(fabric, std::move(server), std::move(memory)));
}

// The device of this process does nothing between its turns, so nobody connects before there is a
// file to fetch: the other end would take this one for dead.
absl::Status BatonFiles::Connect() {
  BATON_RETURN_IF_ERROR(end_.Open(fabric_, kSends, kWindow));
  BATON_ASSIGN_OR_RETURN(region_,
                         end_.device().RegisterMemory(memory_.base(), memory_.bytes(),
                                                      verbs::kLocalWrite | verbs::kRemoteWrite));
  const stream::PeerStream::Memory memory = {memory_.base(), kRingBytes, kStagingBytes,
                                             region_->lkey(), region_->rkey()};
  stream_ = std::make_unique<stream::PeerStream>(
      &end_.queue_pair(), memory,
      stream::PeerStream::Requests{kWindow, kSends, end_.device().limits().max_message_bytes});
  BATON_RETURN_IF_ERROR(stream_->Open());
  verbs::ConnectionParameters parameters;
  parameters.private_data = stream_->Greeting();
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<verbs::ConnectionId> id,
      end_.device().Connect({fabric_.host, server_->port()}, &end_.queue_pair(), parameters));
  end_.Keep(std::move(id));
  // The worker sends nothing before it is asked, so no completion is lost here.
  BATON_ASSIGN_OR_RETURN(const verbs::CmEvent established,
                         end_.AwaitEvent(verbs::CmEventType::kEstablished));
  return stream_->Begin(established.private_data);
}

absl::Status BatonFiles::Fetch(SendWay way, uint64_t bytes, bool checks) {
  const FileRequest request = {++transfers_, bytes, way, 0};
  const uint64_t expected = UsesFileSender(way) ? bytes : bytes + kEndBytes;
  received_ = 0;
  if (stream_ == nullptr) BATON_RETURN_IF_ERROR(Connect());
  checker_.reset();
  if (checks) checker_.emplace(request.transfer, 0, bytes);
  BATON_RETURN_IF_ERROR(
      stream_->Send({reinterpret_cast<const uint8_t*>(&request), sizeof(request)}));
  uint64_t deadline = MonotonicNanoseconds() + kMinuteNs;
  while (received_ < expected) {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const verbs::Completion> taken, end_.TurnOrSleep());
    for (const verbs::Completion& done : taken) {
      BATON_ASSIGN_OR_RETURN(const stream::PeerStream::Event event, stream_->OnCompletion(done));
      if (event.kind != stream::PeerStream::Event::Kind::kMessage) continue;
      BATON_RETURN_IF_ERROR(Take(request, event.message));
      BATON_RETURN_IF_ERROR(stream_->Release(event));
      deadline = MonotonicNanoseconds() + kMinuteNs;
    }
    if (end_.NextEvent().has_value()) return absl::UnavailableError("the worker has disconnected");
    if (MonotonicNanoseconds() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no piece of a file has come for a minute, after ", received_, " of ", bytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status BatonFiles::Take(const FileRequest& request, absl::Span<const uint8_t> message) {
  if (checker_.has_value()) BATON_RETURN_IF_ERROR(Check(request, message));
  const size_t header = UsesFileSender(request.way) ? sizeof(stream::PieceHeader) : 0;
  if (message.size() <= header) return absl::DataLossError("a message has no bytes of the file");
  received_ += message.size() - header;
  return absl::OkStatus();
}

absl::Status BatonFiles::Check(const FileRequest& request, absl::Span<const uint8_t> message) {
  if (UsesFileSender(request.way)) {
    BATON_ASSIGN_OR_RETURN(const stream::PieceChecker::Piece piece, checker_->Check(message));
    message = piece.bytes;
  }
  if (received_ == request.bytes) return absl::OkStatus();  // the end's message
  const std::optional<uint64_t> wrong = FirstWrong(message, received_);
  if (!wrong.has_value()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("a file that was sent is wrong at ", *wrong));
}

uint64_t BatonFiles::RegisteredFor(SendWay way, uint64_t bytes) {
  return kServiceHeapBytes + kBufferBytes + (UsesFileSender(way) ? 0 : bytes);
}

absl::StatusOr<std::unique_ptr<FileWay>> MakeBatonWay(BatonFiles* files, SendWay way,
                                                      uint64_t bytes) {
  auto made = std::make_unique<BatonWay>(files, way, bytes);
  BATON_RETURN_IF_ERROR(made->SendAndCheck());
  return made;
}

}  // namespace baton::bench
