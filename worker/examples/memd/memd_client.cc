#include "worker/examples/memd/memd_client.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::memd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookMs = 20;
// An answer that comes so soon is taken without sleeping.
constexpr std::chrono::microseconds kSpin{20};
// wr_ids. A receive's is its number.
constexpr uint64_t kRequestId = ~uint64_t{0}, kTransferId = ~uint64_t{1};

constexpr uint64_t kRequestPlaceBytes = 64, kReplyPlaceBytes = sizeof(Reply);
constexpr uint64_t kPiecesBegin = kRequestWindow * (kRequestPlaceBytes + kReplyPlaceBytes);
static_assert(sizeof(Request) <= kRequestPlaceBytes);
static_assert(kPiecesBegin % sizeof(uint64_t) == 0);  // results of atomics are the first of a piece

absl::Status CheckAccess(const RemoteMemory& memory, uint64_t offset, uint64_t bytes,
                         uint32_t right) {
  if (offset > memory.bytes || bytes > memory.bytes - offset) {
    return absl::OutOfRangeError(absl::StrCat("offset: ", bytes, " bytes at ", offset,
                                              " are not within the lease's ", memory.bytes));
  }
  if ((memory.rights & right) != right) {
    return absl::PermissionDeniedError(
        absl::StrCat("the lease has the rights ", memory.rights, ", and this needs ", right));
  }
  if (Clock::now() >= memory.ends) {
    return absl::FailedPreconditionError("the lease's time is over: renew it earlier");
  }
  return absl::OkStatus();
}

Request RequestOf(RequestKind kind, uint64_t number) {
  Request request = {};
  request.magic = kRequestMagic;
  request.version = kProtocolVersion;
  request.kind = kind;
  request.number = number;
  return request;
}

absl::Status StatusOf(const Reply& reply) {
  const size_t length = strnlen(reply.reason, sizeof(reply.reason));
  return absl::Status(static_cast<absl::StatusCode>(reply.status),
                      View(std::string_view(reply.reason, length)));
}

// `asked`: before memd can have counted from.
RemoteLease LeaseOf(const Reply& reply, Clock::time_point asked) {
  RemoteLease lease;
  lease.id = reply.lease;
  lease.notices = reply.lease_notices;
  lease.server_version = reply.server_version;
  lease.memory.address = reply.address;
  lease.memory.bytes = reply.bytes;
  lease.memory.rkey = reply.rkey;
  lease.memory.rights = reply.rights;
  if (reply.milliseconds != 0) {
    lease.memory.ends = asked + std::chrono::milliseconds(reply.milliseconds);
  }
  return lease;
}

}  // namespace

// ---------------------------------------------------------------- the connection

MemdClient::~MemdClient() = default;

absl::StatusOr<std::unique_ptr<MemdClient>> MemdClient::Connect(
    std::unique_ptr<verbs::Device> device, const verbs::Address& address,
    const MemdClientOptions& options) {
  BATON_ASSIGN_OR_RETURN(
      examples::SharedMemory memory,
      examples::SharedMemory::Allocate(kPiecesBegin + uint64_t{kDepth} * kPieceBytes));
  std::unique_ptr<MemdClient> client(
      new MemdClient(std::move(device), std::move(memory), options.patience));
  BATON_RETURN_IF_ERROR(client->Open(address));
  return client;
}

absl::Status MemdClient::Open(const verbs::Address& address) {
  BATON_ASSIGN_OR_RETURN(
      region_, device_->RegisterMemory(memory_.base(), memory_.bytes(), verbs::kLocalWrite));
  verbs::QueuePairOptions options;
  options.max_send_requests = kRequestWindow + kDepth;
  options.max_receive_requests = kRequestWindow;
  BATON_ASSIGN_OR_RETURN(queue_, device_->CreateCompletionQueue(options.max_send_requests +
                                                                options.max_receive_requests));
  options.send_queue = options.receive_queue = queue_.get();
  BATON_ASSIGN_OR_RETURN(queue_pair_, device_->CreateQueuePair(options));
  for (uint64_t number = 0; number < kRequestWindow; ++number) {
    BATON_RETURN_IF_ERROR(PostReceive(number));
  }
  BATON_ASSIGN_OR_RETURN(id_, device_->Connect(address, queue_pair_.get(), {}));
  return WaitFor("the connection", [&] { return established_; });
}

uint8_t* MemdClient::RequestPlace(uint64_t number) const {
  return memory_.base() + number % kRequestWindow * kRequestPlaceBytes;
}

uint8_t* MemdClient::ReplyPlace(uint64_t number) const {
  return memory_.base() + kRequestWindow * kRequestPlaceBytes +
         number % kRequestWindow * kReplyPlaceBytes;
}

uint8_t* MemdClient::PiecePlace(uint64_t number) const {
  return memory_.base() + kPiecesBegin + number % kDepth * kPieceBytes;
}

absl::Status MemdClient::PostReceive(uint64_t number) {
  const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(ReplyPlace(number)), kReplyPlaceBytes,
                                 region_->lkey()};
  const verbs::ReceiveRequest request{number, {&sge, 1}};
  size_t posted = 0;
  return queue_pair_->PostReceive({&request, 1}, &posted);
}

absl::Status MemdClient::PostSend(verbs::SendRequest request, const uint8_t* bytes,
                                  uint64_t length) {
  const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(bytes), static_cast<uint32_t>(length),
                                 region_->lkey()};
  if (length != 0) request.sges = {&sge, 1};
  size_t posted = 0;
  return queue_pair_->PostSend({&request, 1}, &posted);
}

// ---------------------------------------------------------------- requests

absl::StatusOr<RemoteLease> MemdClient::Allocate(const AllocateOptions& options) {
  Request request =
      RequestOf(RequestKind::kAllocate, options.number != 0 ? options.number : NewNumber());
  request.bytes = options.bytes;
  request.rights = options.rights;
  request.milliseconds = options.milliseconds;
  return AskForLease(request);
}

absl::Status MemdClient::Free(uint32_t lease) {
  Request request = RequestOf(RequestKind::kFree, NewNumber());
  request.lease = lease;
  return Ask(request).status();
}

absl::StatusOr<RemoteLease> MemdClient::Renew(uint32_t lease, uint64_t milliseconds) {
  Request request = RequestOf(RequestKind::kRenew, NewNumber());
  request.lease = lease;
  request.milliseconds = milliseconds;
  return AskForLease(request);
}

absl::StatusOr<RemoteLease> MemdClient::Stat(uint32_t lease) {
  Request request = RequestOf(RequestKind::kStat, NewNumber());
  request.lease = lease;
  return AskForLease(request);
}

absl::StatusOr<RemoteLease> MemdClient::AskForLease(Request request) {
  const Clock::time_point asked = Clock::now();
  const bool is_repeated = request.number <= last_asked_;
  last_asked_ = std::max(last_asked_, request.number);
  BATON_ASSIGN_OR_RETURN(const Reply reply, Ask(request));
  // The answer may be that to the earlier request, which does not know how much time is left now.
  if (is_repeated && reply.milliseconds != 0) return Stat(reply.lease);
  return LeaseOf(reply, asked);
}

absl::StatusOr<Reply> MemdClient::Ask(Request request) {
  BATON_RETURN_IF_ERROR(WaitFor("room for a request", [&] {
    return requests_ - replies_ < kRequestWindow && requests_ - requests_sent_ < kRequestWindow;
  }));
  uint8_t* const place = RequestPlace(requests_);
  std::memcpy(place, &request, sizeof(request));
  verbs::SendRequest send;
  send.wr_id = kRequestId;
  send.solicited = true;
  BATON_RETURN_IF_ERROR(PostSend(send, place, sizeof(request)));
  ++requests_;
  awaited_ = request.number;
  answer_.reset();
  const absl::Status waited = WaitFor("memd's answer", [&] { return answer_.has_value(); });
  awaited_ = 0;
  BATON_RETURN_IF_ERROR(waited);
  if (answer_->status != 0) return StatusOf(*answer_);
  return *answer_;
}

// ---------------------------------------------------------------- work on memory

absl::Status MemdClient::Read(const RemoteMemory& memory, uint64_t offset,
                              absl::Span<uint8_t> bytes) {
  BATON_RETURN_IF_ERROR(CheckAccess(memory, offset, bytes.size(), kRead));
  if (bytes.empty()) return absl::OkStatus();
  Transfer transfer{memory, offset, bytes.size()};
  transfer.to = bytes.data();
  return Move(transfer);
}

absl::Status MemdClient::Write(const RemoteMemory& memory, uint64_t offset,
                               absl::Span<const uint8_t> bytes) {
  BATON_RETURN_IF_ERROR(CheckAccess(memory, offset, bytes.size(), kWrite));
  if (bytes.empty()) return absl::OkStatus();
  Transfer transfer{memory, offset, bytes.size()};
  transfer.from = bytes.data();
  return Move(transfer);
}

absl::Status MemdClient::Notify(const RemoteLease& lease, uint64_t offset,
                                absl::Span<const uint8_t> bytes) {
  BATON_RETURN_IF_ERROR(
      CheckAccess(lease.memory, offset, bytes.size(), bytes.empty() ? 0 : uint32_t{kWrite}));
  if (notices_ - notices_counted_ >= kNoticeWindow) {
    BATON_RETURN_IF_ERROR(Stat(0).status());  // whose answer counts all of them
  }
  Transfer transfer{lease.memory, offset, bytes.size()};
  transfer.from = bytes.data();
  transfer.notice = lease.id;
  ++notices_;
  return Move(transfer);
}

absl::Status MemdClient::Move(const Transfer& transfer) {
  BATON_RETURN_IF_ERROR(CheckUsable());
  // A notice without bytes is one piece, too.
  const uint64_t pieces = std::max<uint64_t>((transfer.bytes + kPieceBytes - 1) / kPieceBytes, 1);
  const uint64_t begun = transfers_done_;
  uint64_t posted = 0, done = 0;
  while (done < pieces) {
    for (; posted < pieces && posted - done < kDepth; ++posted) {
      BATON_RETURN_IF_ERROR(PostPiece(transfer, posted));
    }
    BATON_RETURN_IF_ERROR(WaitForTransfer(begun + done + 1));
    for (; done < transfers_done_ - begun; ++done) {
      if (transfer.to == nullptr) continue;
      const uint64_t at = done * kPieceBytes;
      std::memcpy(transfer.to + at, PiecePlace(done),
                  std::min<uint64_t>(kPieceBytes, transfer.bytes - at));
    }
  }
  return absl::OkStatus();
}

absl::Status MemdClient::PostPiece(const Transfer& transfer, uint64_t piece) {
  const uint64_t at = piece * kPieceBytes;
  const uint64_t length = std::min<uint64_t>(kPieceBytes, transfer.bytes - at);
  uint8_t* const place = PiecePlace(piece);
  verbs::SendRequest request;
  request.wr_id = kTransferId;
  request.remote_address = transfer.memory.address + transfer.offset + at;
  request.rkey = transfer.memory.rkey;
  if (transfer.to != nullptr) {
    request.opcode = verbs::Opcode::kRead;
  } else {
    if (length != 0) std::memcpy(place, transfer.from + at, length);
    const bool is_last = at + length == transfer.bytes;
    request.opcode =
        transfer.notice && is_last ? verbs::Opcode::kWriteWithImmediate : verbs::Opcode::kWrite;
    request.immediate = transfer.notice.value_or(0);
    request.solicited = true;
  }
  return PostSend(request, place, length);
}

absl::StatusOr<uint64_t> MemdClient::FetchAdd(const RemoteMemory& memory, uint64_t offset,
                                              uint64_t addend) {
  verbs::SendRequest request;
  request.opcode = verbs::Opcode::kFetchAndAdd;
  request.compare_add = addend;
  return Atomic(memory, offset, request);
}

absl::StatusOr<uint64_t> MemdClient::CompareSwap(const RemoteMemory& memory, uint64_t offset,
                                                 uint64_t expected, uint64_t desired) {
  verbs::SendRequest request;
  request.opcode = verbs::Opcode::kCompareAndSwap;
  request.compare_add = expected;
  request.swap = desired;
  return Atomic(memory, offset, request);
}

absl::StatusOr<uint64_t> MemdClient::Atomic(const RemoteMemory& memory, uint64_t offset,
                                            verbs::SendRequest request) {
  uint64_t value = 0;
  BATON_RETURN_IF_ERROR(CheckAccess(memory, offset, sizeof(value), kAtomic));
  if ((memory.address + offset) % sizeof(value) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset: ", offset, " is no multiple of ", sizeof(value)));
  }
  BATON_RETURN_IF_ERROR(CheckUsable());
  request.wr_id = kTransferId;
  request.remote_address = memory.address + offset;
  request.rkey = memory.rkey;
  const uint64_t done = transfers_done_ + 1;
  BATON_RETURN_IF_ERROR(PostSend(request, PiecePlace(0), sizeof(value)));
  BATON_RETURN_IF_ERROR(WaitForTransfer(done));
  std::memcpy(&value, PiecePlace(0), sizeof(value));
  return value;
}

// After an access that was given up, the places of pieces are in use.
absl::Status MemdClient::CheckUsable() const {
  return end_.empty() ? absl::OkStatus() : absl::UnavailableError(end_);
}

absl::Status MemdClient::WaitForTransfer(uint64_t done) {
  absl::Status waited = WaitFor("memd's memory", [&] { return transfers_done_ >= done; });
  // A completion that comes late could not be told from another.
  if (absl::IsDeadlineExceeded(waited)) {
    NoteEnd("an earlier access was not acknowledged, and may have been executed");
  }
  return waited;
}

// ---------------------------------------------------------------- completions and events

void MemdClient::NoteEnd(std::string_view why) {
  if (end_.empty()) end_ = std::string(why);
}

void MemdClient::OnReply(uint64_t number, uint32_t bytes) {
  Reply reply;
  std::memcpy(&reply, ReplyPlace(number), sizeof(reply));
  if (bytes != sizeof(reply) || reply.magic != kReplyMagic || reply.version != kProtocolVersion) {
    return NoteEnd(
        absl::StrCat("a message of ", bytes, " bytes is no reply of version ", kProtocolVersion));
  }
  ++replies_;
  notices_counted_ = std::max(notices_counted_, std::min(reply.notices, notices_));
  if (reply.number == awaited_ && awaited_ != 0 && !answer_) answer_ = reply;
  if (const absl::Status posted = PostReceive(number + kRequestWindow); !posted.ok()) {
    NoteEnd(posted.ToString());
  }
}

void MemdClient::OnCompletion(const verbs::Completion& completion) {
  if (completion.status == verbs::CompletionStatus::kFlushError) return;  // see its event
  if (completion.status != verbs::CompletionStatus::kSuccess) {
    NoteEnd(verbs::CompletionStatusName(completion.status));
  } else if (completion.wr_id == kRequestId) {
    ++requests_sent_;
  } else if (completion.wr_id == kTransferId) {
    ++transfers_done_;
  } else {
    OnReply(completion.wr_id, completion.byte_len);
  }
}

void MemdClient::OnEvent(const verbs::CmEvent& event) {
  if (event.type != verbs::CmEventType::kEstablished) {
    const std::string why = event.status.ok() ? "disconnected" : event.status.ToString();
    NoteEnd(event.private_data.empty() ? why : absl::StrCat(why, ": ", event.private_data));
    return;
  }
  if (event.private_data.size() >= sizeof(greeting_)) {
    std::memcpy(&greeting_, event.private_data.data(), sizeof(greeting_));
  }
  established_ = greeting_.magic == kGreetingMagic && greeting_.version == kProtocolVersion;
  if (!established_) {
    NoteEnd(absl::StrCat("the service there is no memd of version ", kProtocolVersion));
  }
}

absl::Status MemdClient::Look() {
  device_->Progress();
  std::array<verbs::Completion, 16> completions;
  BATON_ASSIGN_OR_RETURN(const int count, queue_->Poll(absl::MakeSpan(completions)));
  for (int i = 0; i < count; ++i) OnCompletion(completions[i]);
  verbs::CmEvent event;
  while (device_->NextEvent(&event)) OnEvent(event);
  return absl::OkStatus();
}

absl::Status MemdClient::WaitFor(std::string_view what, absl::FunctionRef<bool()> is_there) {
  const Clock::time_point begun = Clock::now();
  for (;;) {
    BATON_RETURN_IF_ERROR(Look());
    if (end_.empty() && is_there()) return absl::OkStatus();
    if (!end_.empty()) {
      return absl::UnavailableError(absl::StrCat("instead of ", View(what), ": ", end_));
    }
    const Clock::duration waited = Clock::now() - begun;
    if (waited > patience_) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", patience_.count(), " ms for ", View(what)));
    }
    if (waited < kSpin) continue;
    // A completion between the look and the request would not be reported: look once more.
    BATON_RETURN_IF_ERROR(queue_->RequestNotification());
    BATON_RETURN_IF_ERROR(Look());
    if (is_there() || !end_.empty()) continue;
    pollfd entry = {device_->event_fd(), POLLIN, 0};
    (void)poll(&entry, 1, kLookMs);
  }
}

}  // namespace baton::memd
