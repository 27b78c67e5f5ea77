#include "worker/examples/filed/filed_service.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/crash_point.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/text/text.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/end_text.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"
#include "worker/held_files.h"

namespace baton::filed {
namespace {

// A client's requests fit into the ring, with their bells and some reports.
constexpr uint32_t kRingBytes = 16 << 10;
static_assert(kMaxRequests * (kMaxRequestBytes + stream::kUnitBytes) <= kRingBytes);
constexpr uint16_t kWindow = 32;
constexpr uint32_t kMinSendDepth = 8;
// Between two looks whether the keeper gives a transfer's file.
constexpr uint32_t kResumeAgainMs = 100;
// The ring and the requests of a few clients, and some pieces.
constexpr uint64_t kMinHeapBytes = 1 << 20;
constexpr uint32_t kReplyBytes = sizeof(Reply);
static_assert(kReplyBytes < stream::kMinRingBytes);
constexpr size_t kMostPathText = 200;  // in a line of the log

absl::Status TooLittle(const char* field, uint64_t value, uint64_t wanted) {
  return absl::InvalidArgumentError(absl::StrCat("the service's ", field, " is ", value,
                                                 ", too little for filed: raise it to ", wanted,
                                                 " or more"));
}

bool IsClient(const Connection& connection) {
  return connection.state_version() == kFiledStateVersion &&
         connection.state().size() == sizeof(ClientState);
}

ClientState StateOf(const Connection& connection) {
  ClientState state;
  std::memcpy(&state, connection.state().data(), sizeof(state));
  state.count = std::min(state.count, kMaxRequests);
  return state;
}

absl::Span<const uint8_t> BytesOf(const stream::StreamState& state) {
  return {reinterpret_cast<const uint8_t*>(&state), sizeof(state)};
}

Buffer MemoryOf(const QueuedRequest& request) { return {request.offset, request.length}; }

bool IsUnderWay(const FileTransfer& transfer) { return transfer.version != 0; }

// Returns the code by which the client learns of an error of ServedDirectory.
ReplyCode CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return ReplyCode::kNotFound;
    case absl::StatusCode::kPermissionDenied:
      return ReplyCode::kDenied;
    case absl::StatusCode::kFailedPrecondition:
      return ReplyCode::kWrongType;
    case absl::StatusCode::kInvalidArgument:
      return ReplyCode::kInvalid;
    default:
      return ReplyCode::kFailed;
  }
}

// The same for an error of FileSender.
ReplyCode CodeOfTransfer(const absl::Status& status) {
  const bool is_changed =
      absl::IsFailedPrecondition(status) || absl::IsNotFound(status) || absl::IsOutOfRange(status);
  return is_changed ? ReplyCode::kChanged : ReplyCode::kFailed;
}

// A quota, or a file that cannot be held, is as it was configured.
void ReportUnheld(const std::string& path, const absl::Status& why) {
  const bool is_expected = why.ok() || absl::IsResourceExhausted(why) ||
                           absl::IsInvalidArgument(why) || absl::IsFailedPrecondition(why);
  if (is_expected) return;
  spdlog::warn("\"{}\" was not held, so a successor would have found it by its path: {}",
               OneLine(path, kMostPathText), std::string(why.message()));
}

DecodedReply ReplyTo(const Request& request, ReplyCode code) {
  DecodedReply reply = {};
  reply.header.kind = request.kind;
  reply.header.code = static_cast<uint8_t>(code);
  reply.header.id = request.id;
  return reply;
}

}  // namespace

// ---------------------------------------------------------------- the worker and its shards

absl::Status FiledService::Fit(const Worker& worker) {
  const Capacity& capacity = worker.capacity();
  if (capacity.connection_state_bytes < sizeof(ClientState)) {
    return TooLittle("connection_state_bytes", capacity.connection_state_bytes,
                     sizeof(ClientState));
  }
  if (capacity.shared_receive_queue_depth != 0) {
    return absl::InvalidArgumentError(
        "the service's connections share their receives, which streams cannot: set its "
        "shared_receive_queue_depth to 0");
  }
  if (capacity.receive_queue_depth < kWindow) {
    return TooLittle("receive_queue_depth", capacity.receive_queue_depth, kWindow);
  }
  if (capacity.send_queue_depth < kMinSendDepth) {
    return TooLittle("send_queue_depth", capacity.send_queue_depth, kMinSendDepth);
  }
  if (capacity.shard_heap_bytes < kMinHeapBytes) {
    return TooLittle("shard_heap_bytes", capacity.shard_heap_bytes, kMinHeapBytes);
  }
  return absl::OkStatus();
}

absl::Status FiledService::Start(Worker& worker) {
  BATON_RETURN_IF_ERROR(Fit(worker));
  BATON_RETURN_IF_ERROR(FileSender::CheckOptions(options_.sender));
  BATON_ASSIGN_OR_RETURN(directory_, ServedDirectory::Open(options_.directory));
  BATON_ASSIGN_OR_RETURN(reads_, FileReads::Create(worker, options_.reads));
  if (!reads_->uses_io_uring()) {
    spdlog::warn("files are read without io_uring: {}", reads_->fallback_reason());
  }
  sessions_.resize(worker.capacity().connections);
  unfreed_.resize(worker.capacity().shards);
  return absl::OkStatus();
}

absl::Status FiledService::OnAdopt(Shard& shard) {
  if (reads_ == nullptr) return absl::FailedPreconditionError("reads_: Start comes first");
  return LoadAnew(shard);
}

// The committed states are the truth, and what they do not know is lost.
absl::Status FiledService::LoadAnew(Shard& shard) {
  DropSessions(shard);
  const std::vector<Connection*> connections = shard.connections();
  BATON_RETURN_IF_ERROR(FreeUnknown(shard, connections));
  // The former owner may have died with nothing on the way: no completion would come.
  RetryAll(connections);
  reads_->held_files().Adopt(shard);
  return absl::OkStatus();
}

// Goes on with the requests of all of them, in a moment. Their files are opened then.
void FiledService::RetryAll(const std::vector<Connection*>& connections) {
  for (Connection* const connection : connections) {
    Session* const session = FindSession(*connection);
    if (session == nullptr) continue;
    reads_->held_files().Keep(connection->shard(), session->state.transfer.held);
    const bool has_work = session->state.count > 0 || session->state.is_ending != 0;
    if (has_work) reads_->WakeSoon(session->retry);
  }
}

// Frees rings and requests that no state knows: poison has ended their connections, or no
// transaction had room to free them.
absl::Status FiledService::FreeUnknown(Shard& shard, const std::vector<Connection*>& connections) {
  unfreed_[shard.index()].clear();
  std::set<uint64_t> known;
  for (const Connection* const connection : connections) {
    if (!IsClient(*connection)) continue;
    const ClientState state = StateOf(*connection);
    known.insert(state.stream.receiver.ring_offset);
    for (uint32_t i = 0; i < state.count; ++i) {
      if (state.requests[i].length > 0) known.insert(state.requests[i].offset);
    }
  }
  return HeapGrants::FreeLost(shard,
                              [&](const Buffer& buffer) { return known.contains(buffer.offset); });
}

void FiledService::DropSessions(const Shard& shard) {
  for (std::unique_ptr<Session>& session : sessions_) {
    if (session != nullptr && session->shard == shard.index()) session.reset();
  }
}

void FiledService::OnRelease(Shard& shard) {
  for (const std::unique_ptr<Session>& session : sessions_) {
    if (session == nullptr || session->shard != shard.index()) continue;
    const absl::StatusOr<Stream> stream =
        Stream::Load(*session->connection, BytesOf(session->state.stream));
    if (stream.ok()) Save(*session, *stream);
  }
  DropSessions(shard);
  reads_->Finish(shard);
}

void FiledService::OnLost(Shard& shard) {
  spdlog::warn("shard {} was taken away", shard.index());
  DropSessions(shard);
  reads_->Finish(shard);
}

void FiledService::OnShutdown(std::string_view reason) {
  spdlog::info("asked to end: {}", std::string(reason));
}

// ---------------------------------------------------------------- a connection

// Returns null for one that is not a client yet.
FiledService::Session* FiledService::FindSession(Connection& connection) {
  std::unique_ptr<Session>& session = sessions_[connection.index()];
  if (session != nullptr && session->generation == connection.generation()) return session.get();
  session.reset();
  if (!IsClient(connection)) return nullptr;
  session = std::make_unique<Session>(reads_.get(), &connection,
                                      [this, &connection] { Wake(connection); });
  session->state = session->saved = StateOf(connection);
  return session.get();
}

// The completion comes first: what it changes has to find room in the transaction that acknowledges
// it, and what could not be freed before can wait.
void FiledService::OnCompletion(Shard& shard, const Completion& completion) {
  Dispatch(shard, completion);
  for (const Buffer& one : std::exchange(unfreed_[shard.index()], {})) Free(shard, one);
}

void FiledService::Dispatch(Shard& shard, const Completion& completion) {
  switch (completion.kind) {
    case Completion::Kind::kConnectRequest:
      return OnConnectRequest(shard, *completion.connection);
    case Completion::Kind::kEstablished:
      return;
    case Completion::Kind::kReceive:
    case Completion::Kind::kSend:
      return OnEvent(completion);
    case Completion::Kind::kDisconnected:
    case Completion::Kind::kConnectFailed:
      return OnEnd(shard, completion);
  }
}

void FiledService::OnConnectRequest(Shard& shard, Connection& connection) {
  BATON_CRASH_POINT("filed-accept-begin");
  if (!stream::DecodeGreeting(connection.private_data())) {
    return Refuse(shard, connection, absl::InvalidArgumentError("it is no stream's"));
  }
  const absl::StatusOr<StreamRing> ring = Stream::OpenRing(shard, kRingBytes);
  if (!ring.ok()) return Refuse(shard, connection, ring.status());
  const absl::Status accepted = Accept(shard, connection, *ring);
  BATON_CRASH_POINT("filed-accept-end");
  if (accepted.ok()) return;
  Stream::CloseRing(shard, *ring).IgnoreError();  // what stays of it is revoked by the next owner
  // Everything else that is staged goes with it: what others have freed is not free, for example.
  shard.Abandon();
  const absl::Status loaded = LoadAnew(shard);
  if (!loaded.ok()) {
    spdlog::error("shard {}: memory stays until another worker takes over: {}", shard.index(),
                  std::string(loaded.message()));
  }
  Refuse(shard, connection, accepted);
}

absl::Status FiledService::Accept(Shard& shard, Connection& connection, const StreamRing& ring) {
  BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Accept(connection, ring, kWindow));
  ClientState state = {};
  std::memcpy(&state.stream, stream.state().data(), sizeof(state.stream));
  return shard.SetState(connection, {reinterpret_cast<const uint8_t*>(&state), sizeof(state)},
                        kFiledStateVersion);
}

void FiledService::Refuse(Shard& shard, Connection& connection, const absl::Status& why) {
  spdlog::error("connection {} of {} is refused: {}", connection.index(),
                std::string(connection.peer_address()), std::string(why.message()));
  constexpr size_t kMostReason = 100;
  const absl::Status rejected = shard.Reject(connection, MessageOf(why).substr(0, kMostReason));
  if (rejected.ok()) return;
  spdlog::error("connection {} cannot be refused: {}", connection.index(),
                std::string(rejected.message()));
}

void FiledService::OnEnd(Shard& shard, const Completion& completion) {
  Session* const session = FindSession(*completion.connection);
  if (session == nullptr) return;
  EndTransfer(*session);
  spdlog::info("connection {} of {} ended: {}", completion.connection->index(),
               std::string(completion.connection->peer_address()),
               std::string(examples::EndText(completion)));
  for (uint32_t i = 0; i < session->state.count; ++i) {
    Free(shard, MemoryOf(session->state.requests[i]));
  }
  const absl::StatusOr<Stream> stream =
      Stream::Load(*completion.connection, BytesOf(session->state.stream));
  const absl::Status closed =
      stream.ok() ? Stream::CloseRing(shard, stream->ring()) : stream.status();
  if (!closed.ok()) {
    spdlog::error("connection {}: its ring stays until another worker takes over: {}",
                  completion.connection->index(), std::string(closed.message()));
  }
  sessions_[completion.connection->index()].reset();
}

void FiledService::OnEvent(const Completion& completion) {
  Session* const session = FindSession(*completion.connection);
  // After an error the connection ends by itself.
  const bool failed = completion.status != verbs::CompletionStatus::kSuccess;
  if (session == nullptr || failed) return;
  if (session->state.is_ending != 0) return Disconnect(*session);
  absl::StatusOr<Stream> stream =
      Stream::Load(*session->connection, BytesOf(session->state.stream));
  absl::Status status = stream.status();
  if (status.ok()) {
    status = Handle(*session, *stream, completion);
    if (!status.ok()) End(*session, status);
    Save(*session, *stream);
  } else {
    End(*session, status);
  }
  BATON_CRASH_POINT("filed-event-end");
}

// Something has been read, or there may be room for what had none.
void FiledService::Wake(Connection& connection) {
  Session* const session = FindSession(connection);
  if (session == nullptr) return;
  if (session->state.is_ending != 0) return Disconnect(*session);
  absl::StatusOr<Stream> stream =
      Stream::Load(*session->connection, BytesOf(session->state.stream));
  if (!stream.ok()) return End(*session, stream.status());
  BATON_CRASH_POINT("filed-wake-begin");
  const absl::Status status = Work(*session, *stream);
  if (!status.ok()) End(*session, status);
  Save(*session, *stream);
  BATON_CRASH_POINT("filed-wake-end");
}

absl::Status FiledService::Handle(Session& session, Stream& stream, const Completion& completion) {
  BATON_ASSIGN_OR_RETURN(const Stream::Event event, stream.OnCompletion(completion));
  if (event.kind == Stream::Event::Kind::kMessage) {
    BATON_RETURN_IF_ERROR(TakeRequest(session, stream, event.message));
    BATON_RETURN_IF_ERROR(stream.Release(event));
    BATON_CRASH_POINT("filed-request-taken");
  }
  return Work(session, stream);
}

// ---------------------------------------------------------------- requests come

absl::Status FiledService::TakeRequest(Session& session, Stream& stream, const Buffer& message) {
  // The client may write there meanwhile: what counts is a copy.
  std::array<uint8_t, kMaxRequestBytes> copy;
  if (message.length > copy.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a request of ", message.length, " bytes"));
  }
  std::memcpy(copy.data(), session.connection->shard().heap().At(message), message.length);
  const absl::Span<const uint8_t> bytes(copy.data(), message.length);
  const std::optional<DecodedRequest> request = DecodeRequest(bytes);
  if (!request) {
    return absl::InvalidArgumentError(absl::StrCat("a message that is no request of version ",
                                                   kProtocolVersion, ", or has no plain path"));
  }
  if (request->header.kind == static_cast<uint8_t>(RequestKind::kCancel)) {
    Cancel(session, request->header.id);
    return absl::OkStatus();
  }
  return Enqueue(session, stream, *request, bytes);
}

absl::Status FiledService::Enqueue(Session& session, Stream& stream, const DecodedRequest& request,
                                   absl::Span<const uint8_t> message) {
  ClientState& state = session.state;
  QueuedRequest* const end = state.requests + state.count;
  if (std::any_of(state.requests, end,
                  [&](const QueuedRequest& one) { return one.id == request.header.id; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("request ", request.header.id, " comes a second time"));
  }
  if (state.count == kMaxRequests) {
    BATON_ASSIGN_OR_RETURN(
        const bool sent,
        SendReply(session, stream, ReplyTo(request.header, ReplyCode::kOverloaded)));
    if (sent) return absl::OkStatus();
    return absl::ResourceExhaustedError("more requests than the client may have");
  }
  Heap& heap = session.connection->shard().heap();
  const absl::StatusOr<Buffer> memory = heap.Allocate(message.size());
  if (memory.ok()) {
    std::memcpy(heap.At(*memory), message.data(), message.size());
    *end = {request.header.id, memory->offset, memory->length, 0, 0, {}};
  } else if (absl::IsResourceExhausted(memory.status())) {
    // Other clients may have the memory. The answer takes its turn, and waits for some.
    const auto code = static_cast<uint8_t>(ReplyCode::kOverloaded);
    *end = {request.header.id, 0, 0, code, request.header.kind, {}};
  } else {
    return memory.status();
  }
  ++state.count;
  return absl::OkStatus();
}

// Each request is answered once: this one in its turn.
void FiledService::Cancel(Session& session, uint64_t id) {
  ClientState& state = session.state;
  for (uint32_t i = 0; i < state.count; ++i) {
    if (state.requests[i].id != id) continue;
    state.requests[i].code = static_cast<uint8_t>(ReplyCode::kCanceled);
    if (i > 0) return;
    EndTransfer(session);
  }
}

void FiledService::EndTransfer(Session& session) {
  session.sender.reset();
  reads_->held_files().Discard(*session.connection, session.state.transfer.held);
  session.state.transfer = {};
}

// ---------------------------------------------------------------- requests are answered

// One directory at most is read in a call, and one pipeline of a file is sent: others have their
// turn before the completion of what was sent.
absl::Status FiledService::Work(Session& session, Stream& stream) {
  for (uint32_t i = 0; i < 2 * kMaxRequests && session.state.count > 0; ++i) {
    BATON_ASSIGN_OR_RETURN(const Outcome outcome, WorkOnFirst(session, stream));
    if (outcome == Outcome::kWaits) break;
    if (outcome == Outcome::kAgain) continue;
    Pop(session);
    BATON_CRASH_POINT("filed-answered");
  }
  return absl::OkStatus();
}

absl::StatusOr<FiledService::Outcome> FiledService::WorkOnFirst(Session& session, Stream& stream) {
  const QueuedRequest& first = session.state.requests[0];
  if (first.code != static_cast<uint8_t>(ReplyCode::kOk)) {
    return Answer(session, stream, ReplyTo(RequestOf(session).header, ReplyCode(first.code)));
  }
  if (IsUnderWay(session.state.transfer)) return Transfer(session, stream);
  return Begin(session, stream);
}

// The heap's memory is as it was taken from the client, and was checked then.
DecodedRequest FiledService::RequestOf(const Session& session) {
  const QueuedRequest& first = session.state.requests[0];
  DecodedRequest unknown = {};
  unknown.header.id = first.id;
  unknown.header.kind = first.kind;
  if (first.length == 0) return unknown;
  const uint8_t* const memory = session.connection->shard().heap().At(MemoryOf(first));
  std::optional<DecodedRequest> request = DecodeRequest({memory, first.length});
  return request ? *std::move(request) : unknown;
}

FiledService::Outcome FiledService::FailFirst(Session& session, ReplyCode code) {
  EndTransfer(session);
  session.state.requests[0].code = static_cast<uint8_t>(code);
  return Outcome::kAgain;
}

absl::StatusOr<FiledService::Outcome> FiledService::Begin(Session& session, Stream& stream) {
  const DecodedRequest request = RequestOf(session);
  DecodedReply reply = ReplyTo(request.header, ReplyCode::kOk);
  absl::Status status;
  switch (RequestKind(request.header.kind)) {
    case RequestKind::kGet:
      return BeginGet(session, request);
    case RequestKind::kStat: {
      const absl::StatusOr<FileInfo> info = directory_->Stat(request.path);
      if (info.ok()) reply.header.info = *info;
      status = info.status();
      break;
    }
    case RequestKind::kList: {
      // The directory is read when the reply can be sent, and not again and again before.
      const uint32_t most = std::min(kMaxListBytes, stream.peer_ring_bytes() - kReplyBytes);
      BATON_ASSIGN_OR_RETURN(const bool has_room, AwaitRoom(session, stream, most + kReplyBytes));
      if (!has_room) return Outcome::kWaits;
      absl::StatusOr<ServedDirectory::Page> page =
          directory_->List(request.path, request.after, most);
      if (page.ok()) {
        reply.entries = std::move(page->entries);
        reply.header.more = page->more ? 1 : 0;
      }
      status = page.status();
      break;
    }
    default:
      status = absl::InvalidArgumentError("a damaged request");
  }
  if (!status.ok()) return FailFirst(session, CodeOf(status));
  BATON_ASSIGN_OR_RETURN(const Outcome outcome, Answer(session, stream, reply));
  if (outcome != Outcome::kAnswered) return outcome;
  Pop(session);
  return Outcome::kWaits;  // for the completion of the reply
}

absl::StatusOr<FiledService::Outcome> FiledService::BeginGet(Session& session,
                                                             const DecodedRequest& request) {
  absl::StatusOr<ServedDirectory::File> file = directory_->OpenFile(request.path);
  if (!file.ok()) return FailFirst(session, CodeOf(file.status()));
  const Request& header = request.header;
  if (file->info.size != header.file_size || file->info.mtime_ns != header.file_mtime_ns) {
    return FailFirst(session, ReplyCode::kChanged);
  }
  const bool is_range = header.length > 0 && header.length <= file->info.size &&
                        header.offset <= file->info.size - header.length;
  if (!is_range) return FailFirst(session, ReplyCode::kInvalid);
  Connection& connection = *session.connection;
  absl::StatusOr<std::unique_ptr<FileSender>> sender = FileSender::Begin(
      *reads_, connection, std::move(file->fd), {header.id, header.offset, header.length},
      [this, &connection] { Wake(connection); }, options_.sender);
  if (!sender.ok()) {
    spdlog::error("\"{}\" cannot be sent: {}", OneLine(request.path, kMostPathText),
                  std::string(sender.status().message()));
    return FailFirst(session, CodeOfTransfer(sender.status()));
  }
  session.sender = *std::move(sender);
  session.state.transfer = session.sender->state();
  BATON_CRASH_POINT("filed-transfer-begun");
  return Outcome::kAgain;
}

absl::Status FiledService::Resume(Session& session) {
  Connection& connection = *session.connection;
  const FileTransfer& transfer = session.state.transfer;
  absl::StatusOr<ServedDirectory::File> file = directory_->OpenFile(RequestOf(session).path);
  if (!file.ok() && transfer.held == 0) return file.status();
  FileDescriptor fd = file.ok() ? std::move(file->fd) : FileDescriptor();
  BATON_ASSIGN_OR_RETURN(session.sender,
                         FileSender::Load(
                             *reads_, connection, std::move(fd), transfer,
                             [this, &connection] { Wake(connection); }, options_.sender));
  BATON_CRASH_POINT("filed-transfer-resumed");
  return absl::OkStatus();
}

absl::StatusOr<FiledService::Outcome> FiledService::Transfer(Session& session, Stream& stream) {
  absl::Status status;
  if (session.sender == nullptr) status = Resume(session);
  if (FileSender::IsForNow(status)) {
    reads_->RetryLater(session.retry, kResumeAgainMs);
    return Outcome::kWaits;
  }
  if (status.ok()) {
    status = session.sender->Advance(stream);
    session.state.transfer = session.sender->state();
  }
  if (!status.ok()) {
    if (absl::IsAborted(status)) return status;  // the shard is another worker's
    spdlog::warn("\"{}\" is not sent to its end: {}",
                 OneLine(RequestOf(session).path, kMostPathText), std::string(status.message()));
    return FailFirst(session, CodeOfTransfer(status));
  }
  BATON_CRASH_POINT("filed-advanced");
  if (!session.sender->done()) return Outcome::kWaits;
  ReportUnheld(RequestOf(session).path, session.sender->hold_status());
  EndTransfer(session);
  return Outcome::kAnswered;
}

absl::StatusOr<FiledService::Outcome> FiledService::Answer(Session& session, Stream& stream,
                                                           const DecodedReply& reply) {
  BATON_ASSIGN_OR_RETURN(const bool sent, SendReply(session, stream, reply));
  return sent ? Outcome::kAnswered : Outcome::kWaits;
}

// The first request is answered.
void FiledService::Pop(Session& session) {
  ClientState& state = session.state;
  Free(session.connection->shard(), MemoryOf(state.requests[0]));
  std::copy(state.requests + 1, state.requests + state.count, state.requests);
  --state.count;
  state.requests[state.count] = {};
}

// Returns false if there is no room now; then a completion or a wake comes.
absl::StatusOr<bool> FiledService::AwaitRoom(Session& session, Stream& stream, uint32_t length) {
  absl::StatusOr<bool> has_room = stream.AwaitRoom(length);
  if (!absl::IsResourceExhausted(has_room.status())) return has_room;
  reads_->RetryLater(session.retry);
  return false;
}

absl::StatusOr<bool> FiledService::SendReply(Session& session, Stream& stream,
                                             const DecodedReply& reply) {
  const std::string bytes = EncodeReply(reply);
  Heap& heap = session.connection->shard().heap();
  const absl::StatusOr<Buffer> memory = heap.Allocate(bytes.size());
  if (absl::IsResourceExhausted(memory.status())) {
    reads_->RetryLater(session.retry);
    return false;
  }
  BATON_RETURN_IF_ERROR(memory.status());
  std::memcpy(heap.At(*memory), bytes.data(), bytes.size());
  const absl::Status sent = stream.Send({&*memory, 1});
  Free(session.connection->shard(), *memory);  // it is held until the send is acknowledged
  if (absl::IsResourceExhausted(sent)) {
    // The transaction is full.
    const bool has_room = stream.RoomFor(static_cast<uint32_t>(bytes.size()), 1) > 0;
    if (has_room) reads_->RetryLater(session.retry);
    return false;
  }
  BATON_RETURN_IF_ERROR(sent);
  return true;
}

// ---------------------------------------------------------------- what is staged

// Tries again with the shard's next completion if the transaction has no room.
void FiledService::Free(Shard& shard, const Buffer& memory) {
  if (memory.length == 0) return;
  const absl::Status freed = shard.heap().Free(memory);
  if (absl::IsResourceExhausted(freed)) {
    unfreed_[shard.index()].push_back(memory);
  } else if (!freed.ok()) {
    spdlog::error("memory of shard {} cannot be freed: {}", shard.index(),
                  std::string(freed.message()));
  }
}

// A wake may come while the transaction has no room. Then nothing of this connection is staged, and
// the next one saves it.
void FiledService::Save(Session& session, const Stream& stream) {
  std::memcpy(&session.state.stream, stream.state().data(), sizeof(session.state.stream));
  if (std::memcmp(&session.state, &session.saved, sizeof(session.saved)) == 0) return;
  const absl::Status saved = session.connection->shard().SetState(
      *session.connection,
      {reinterpret_cast<const uint8_t*>(&session.state), sizeof(session.state)},
      kFiledStateVersion);
  if (saved.ok()) session.saved = session.state;
  if (absl::IsResourceExhausted(saved)) {
    reads_->RetryLater(session.retry);
  } else if (!saved.ok() && !absl::IsAborted(saved)) {
    spdlog::error("connection {}: its state is not saved: {}", session.connection->index(),
                  std::string(saved.message()));
  }
}

void FiledService::End(Session& session, const absl::Status& why) {
  if (absl::IsAborted(why)) return;  // the shard is another worker's
  Connection& connection = *session.connection;
  spdlog::error("connection {} of {} is disconnected: {}", connection.index(),
                std::string(connection.peer_address()), std::string(why.message()));
  session.sender.reset();
  session.state.is_ending = 1;
  Disconnect(session);
}

void FiledService::Disconnect(Session& session) {
  Connection& connection = *session.connection;
  const absl::Status ended = connection.shard().Disconnect(connection);
  if (absl::IsResourceExhausted(ended)) {
    reads_->RetryLater(session.retry);  // the peer may be silent from now on
  } else if (!ended.ok()) {
    spdlog::error("connection {}: it cannot be disconnected now: {}", connection.index(),
                  std::string(ended.message()));
  }
}

}  // namespace baton::filed
