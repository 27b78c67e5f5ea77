#include "worker/examples/filed/get_client.h"

#include <poll.h>

#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/text/text.h"

namespace baton::filed {
namespace {

// The server has as many bytes on the way as the ring has: enough for some ranges, at 64 KiB each
// piece. A window of bells for each piece in it.
constexpr uint32_t kRingBytes = 4 << 20, kStagingBytes = 64 << 10;
constexpr uint16_t kWindow = 64;
constexpr uint32_t kSends = 32;
constexpr int kLookMs = 20;
constexpr size_t kMostReasonBytes = 200;

}  // namespace

GetClient::~GetClient() = default;

absl::StatusOr<std::unique_ptr<GetClient>> GetClient::Connect(std::unique_ptr<verbs::Device> device,
                                                              const verbs::Address& address,
                                                              std::chrono::milliseconds patience) {
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory,
                         examples::SharedMemory::Allocate(kRingBytes + kStagingBytes));
  std::unique_ptr<GetClient> client(new GetClient(std::move(device), std::move(memory), patience));
  BATON_RETURN_IF_ERROR(client->Open(address));
  return client;
}

absl::Status GetClient::Open(const verbs::Address& address) {
  BATON_ASSIGN_OR_RETURN(region_,
                         device_->RegisterMemory(memory_.base(), memory_.bytes(),
                                                 verbs::kLocalWrite | verbs::kRemoteWrite));
  BATON_ASSIGN_OR_RETURN(queue_, device_->CreateCompletionQueue(kWindow + kSends));
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = queue_.get();
  options.max_send_requests = kSends;
  options.max_receive_requests = kWindow;
  BATON_ASSIGN_OR_RETURN(queue_pair_, device_->CreateQueuePair(options));
  const stream::PeerStream::Memory parts = {memory_.base(), kRingBytes, kStagingBytes,
                                            region_->lkey(), region_->rkey()};
  stream_ = std::make_unique<stream::PeerStream>(
      queue_pair_.get(), parts,
      stream::PeerStream::Requests{kWindow, kSends, device_->limits().max_message_bytes});
  BATON_RETURN_IF_ERROR(stream_->Open());
  verbs::ConnectionParameters parameters;
  parameters.private_data = stream_->Greeting();
  BATON_ASSIGN_OR_RETURN(id_, device_->Connect(address, queue_pair_.get(), parameters));
  last_news_ = Clock::now();
  while (!established_) BATON_RETURN_IF_ERROR(Await(nullptr));
  return absl::OkStatus();
}

// ---------------------------------------------------------------- requests

uint64_t GetClient::Ask(RequestKind kind, DecodedRequest request) {
  if (unanswered_.empty()) last_news_ = Clock::now();
  request.header.kind = static_cast<uint8_t>(kind);
  request.header.id = ++last_request_;
  std::optional<stream::PieceChecker> pieces;
  if (kind == RequestKind::kGet) {
    pieces.emplace(last_request_, request.header.offset, request.header.length);
  }
  unanswered_.emplace(last_request_, Unanswered{kind, pieces});
  to_send_.push_back(EncodeRequest(request));
  return last_request_;
}

uint64_t GetClient::List(const std::string& path, const std::string& after) {
  return Ask(RequestKind::kList, {{}, path, after});
}

uint64_t GetClient::Stat(const std::string& path) {
  return Ask(RequestKind::kStat, {{}, path, {}});
}

uint64_t GetClient::Get(const std::string& path, const FileInfo& info, uint64_t offset,
                        uint64_t length) {
  DecodedRequest request = {{}, path, {}};
  request.header.offset = offset;
  request.header.length = length;
  request.header.file_size = info.size;
  request.header.file_mtime_ns = info.mtime_ns;
  return Ask(RequestKind::kGet, std::move(request));
}

void GetClient::Cancel(uint64_t id) {
  if (!unanswered_.contains(id)) return;
  DecodedRequest request = {};
  request.header.kind = static_cast<uint8_t>(RequestKind::kCancel);
  request.header.id = id;
  to_send_.push_back(EncodeRequest(request));
}

absl::Status GetClient::SendAsked() {
  while (established_ && !to_send_.empty()) {
    const std::string& message = to_send_.front();
    const absl::Status sent =
        stream_->Send({reinterpret_cast<const uint8_t*>(message.data()), message.size()});
    if (absl::IsResourceExhausted(sent)) break;
    BATON_RETURN_IF_ERROR(sent);
    to_send_.pop_front();
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- answers

absl::Status GetClient::TakeEvents() {
  verbs::CmEvent event;
  while (device_->NextEvent(&event)) {
    if (event.type == verbs::CmEventType::kEstablished) {
      BATON_RETURN_IF_ERROR(stream_->Begin(event.private_data));
      established_ = true;
      continue;
    }
    const char* const what =
        event.type == verbs::CmEventType::kRejected      ? "the server refuses the connection"
        : event.type == verbs::CmEventType::kUnreachable ? "there is no connection to the server"
                                                         : "the server has ended the connection";
    std::string why = OneLine(event.private_data, kMostReasonBytes);
    if (why.empty()) why = std::string(MessageOf(event.status));
    return absl::UnavailableError(absl::StrCat(what, why.empty() ? "" : ": ", why));
  }
  return absl::OkStatus();
}

absl::Status GetClient::TakePiece(Sink& sink, absl::Span<const uint8_t> message) {
  stream::PieceHeader header;
  std::memcpy(&header, message.data(), sizeof(header));
  const auto found = unanswered_.find(header.transfer);
  if (found == unanswered_.end() || !found->second.pieces) {
    return absl::InvalidArgumentError(
        absl::StrCat("the server sends a piece of request ", header.transfer, ", which is none"));
  }
  // The message is not copied: a server that changes it now might as well have sent it so.
  BATON_ASSIGN_OR_RETURN(const stream::PieceChecker::Piece piece,
                         found->second.pieces->Check(message));
  const bool last = found->second.pieces->done();
  if (last) unanswered_.erase(found);
  return sink.OnPiece(header.transfer, piece.offset, piece.bytes, last);
}

absl::Status GetClient::TakeMessage(Sink& sink, absl::Span<const uint8_t> message) {
  if (stream::IsPiece(message)) return TakePiece(sink, message);
  const std::optional<DecodedReply> reply = DecodeReply(message);
  if (!reply) {
    return absl::InvalidArgumentError(
        absl::StrCat("the server sends a message that is no answer of version ", kProtocolVersion,
                     " of filed's protocol"));
  }
  const auto found = unanswered_.find(reply->header.id);
  // A cancelled request may have been answered before.
  const bool was_canceled = reply->header.code == static_cast<uint8_t>(ReplyCode::kCanceled);
  if (found == unanswered_.end() && was_canceled) return absl::OkStatus();
  if (found == unanswered_.end() || (found->second.kind == RequestKind::kGet &&
                                     reply->header.code == static_cast<uint8_t>(ReplyCode::kOk))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the server answers request ", reply->header.id, ", which has no such reply"));
  }
  unanswered_.erase(found);
  return sink.OnReply(*reply);
}

// Returns whether something has come.
absl::StatusOr<bool> GetClient::Look(Sink* sink) {
  device_->Progress();
  BATON_RETURN_IF_ERROR(SendAsked());
  bool moved = false;
  std::array<verbs::Completion, 16> completions;
  // The first bell may be there before the event that has the server's greeting.
  if (established_) {
    BATON_ASSIGN_OR_RETURN(const int count, queue_->Poll(absl::MakeSpan(completions)));
    for (int i = 0; i < count; ++i) {
      BATON_ASSIGN_OR_RETURN(const stream::PeerStream::Event event,
                             stream_->OnCompletion(completions[i]));
      if (event.kind != stream::PeerStream::Event::Kind::kMessage) continue;
      if (sink == nullptr) return absl::InvalidArgumentError("the server sends without a request");
      BATON_RETURN_IF_ERROR(TakeMessage(*sink, event.message));
      BATON_RETURN_IF_ERROR(stream_->Release(event));
      moved = true;
    }
    if (count > 0) return moved;  // the queue may have more, and the events come after them
  }
  const bool was_established = established_;
  BATON_RETURN_IF_ERROR(TakeEvents());
  return moved || established_ != was_established;
}

absl::Status GetClient::Await(Sink* sink) {
  BATON_ASSIGN_OR_RETURN(bool moved, Look(sink));
  if (!moved) {
    BATON_RETURN_IF_ERROR(queue_->RequestNotification());
    BATON_ASSIGN_OR_RETURN(moved, Look(sink));
  }
  const Clock::time_point now = Clock::now();
  if (moved) {
    last_news_ = now;
    return absl::OkStatus();
  }
  const bool waits = !established_ || !unanswered_.empty();
  if (waits && now - last_news_ > patience_) {
    return absl::DeadlineExceededError(
        absl::StrCat("the server has not answered for ", patience_.count(), " ms"));
  }
  pollfd entry = {device_->event_fd(), POLLIN, 0};
  (void)poll(&entry, 1, kLookMs);
  return absl::OkStatus();
}

absl::Status GetClient::Turn(Sink& sink) { return Await(&sink); }

}  // namespace baton::filed
