// Streams in the C interface, and files that are sent over them.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/stream/ring.h"
#include "worker/file_reads.h"
#include "worker/file_sender.h"
#include "worker/kit/c_layer.h"
#include "worker/kit/include/baton/baton.h"
#include "worker/stream.h"
#include "worker/worker.h"

namespace {

using baton::Connection;
using baton::FileReads;
using baton::FileSender;
using baton::FileTransfer;
using baton::Shard;
using baton::Stream;
using baton::kit::Buffers;
using baton::kit::BytesOf;
using baton::kit::CheckSize;
using baton::kit::CopyOf;
using baton::kit::CopyTo;
using baton::kit::Files;
using baton::kit::FromC;
using baton::kit::Give;
using baton::kit::Hand;
using baton::kit::kTooMany;
using baton::kit::Of;
using baton::kit::Report;
using baton::kit::ToC;
using baton::kit::WorkerOf;
using baton::kit::Wrong;

static_assert(BATON_STREAM_STATE_BYTES == Stream::kStateBytes);
static_assert(sizeof(baton_file_transfer) == sizeof(FileTransfer));
static_assert(offsetof(baton_file_transfer, file_bytes) == offsetof(FileTransfer, size));
static_assert(offsetof(baton_file_transfer, next) == offsetof(FileTransfer, next));
static_assert(offsetof(baton_file_transfer, end) == offsetof(FileTransfer, end));
static_assert(offsetof(baton_file_transfer, held) == offsetof(FileTransfer, held));

// A baton_stream is one of these.
struct OpenStream {
  Shard* shard;
  Stream stream;
};

OpenStream* Of(baton_stream* stream) { return reinterpret_cast<OpenStream*>(stream); }
const OpenStream* Of(const baton_stream* stream) {
  return reinterpret_cast<const OpenStream*>(stream);
}
FileSender* Of(baton_file_sender* sender) { return reinterpret_cast<FileSender*>(sender); }

int HandStream(const Connection& connection, const absl::StatusOr<Stream>& opened,
               baton_stream** stream) {
  if (!opened.ok()) return Report(opened.status());
  return Hand(std::make_unique<OpenStream>(OpenStream{&connection.shard(), *opened}), stream);
}

absl::StatusOr<Stream> Accept(Connection& connection, uint32_t ring_bytes, uint16_t window) {
  Shard& shard = connection.shard();
  BATON_RETURN_IF_ERROR(baton::kit::CheckHeap(shard));
  // Any peer may ask, and a ring takes two answers of the keeper, although it is closed at once.
  if (!baton::stream::DecodeGreeting(connection.private_data())) {
    return absl::InvalidArgumentError("private data: it does not begin with a stream's greeting");
  }
  BATON_ASSIGN_OR_RETURN(const baton::StreamRing ring, Stream::OpenRing(shard, ring_bytes));
  absl::StatusOr<Stream> accepted = Stream::Accept(connection, ring, window);
  if (!accepted.ok()) BATON_RETURN_IF_ERROR(Stream::CloseRing(shard, ring));
  return accepted;
}

absl::StatusOr<Stream> Load(Connection& connection, absl::Span<const uint8_t> state) {
  BATON_RETURN_IF_ERROR(baton::kit::CheckHeap(connection.shard()));
  return Stream::Load(connection, state);
}

template <typename T>
void SetUnlessZero(T given, T* option) {
  if (given != 0) *option = given;
}

absl::Status Open(baton::Worker& worker, const baton_file_options& given, Files* files) {
  if (files->reads != nullptr) return absl::AlreadyExistsError("the worker's files are open");
  FileReads::Options reads;
  reads.use_io_uring = !given.no_io_uring;
  SetUnlessZero(given.most_reads, &reads.most_reads);
  SetUnlessZero(given.most_bytes, &reads.most_bytes);
  FileSender::Options pipeline;
  SetUnlessZero(given.piece_bytes, &pipeline.piece_bytes);
  SetUnlessZero(given.depth, &pipeline.depth);
  pipeline.checksums = !given.no_checksums;
  BATON_RETURN_IF_ERROR(FileSender::CheckOptions(pipeline));
  BATON_ASSIGN_OR_RETURN(files->reads, FileReads::Create(worker, reads));
  files->pipeline = pipeline;
  return absl::OkStatus();
}

using Sender = absl::StatusOr<std::unique_ptr<FileSender>>;

// Calls `make` with the worker's files, a duplicate of the descriptor, and what wakes the caller.
template <typename Make>  // (Files&, FileDescriptor, std::function<void()>) -> Sender
int MakeSender(baton_worker* worker, const baton_file* given, const Make& make,
               baton_file_sender** sender) {
  if (const int code = CheckSize(given, "file")) return code;
  const baton_file file = CopyOf(*given);
  if (file.wake == nullptr) return Wrong("wake", "is NULL");
  Files& files = Of(worker)->application.files;
  if (files.reads == nullptr) {
    return Report(absl::FailedPreconditionError(
        "the worker does not send files: call baton_open_files() after baton_attach()"));
  }
  baton::FileDescriptor copy;  // none: the one that the driver holds
  if (file.fd >= 0) {
    copy = baton::CopyOf(file.fd);
    if (!copy) return Report(baton::ErrnoStatus(errno, "fd: F_DUPFD_CLOEXEC (see RLIMIT_NOFILE)"));
  }
  Sender made =
      make(files, std::move(copy), [wake = file.wake, context = file.context] { wake(context); });
  if (!made.ok()) return Report(made.status());
  return Hand(*std::move(made), sender);
}

}  // namespace

extern "C" {

// ---------------------------------------------------------------- streams

int baton_accept_stream(baton_connection* connection, uint32_t ring_bytes, uint16_t window,
                        baton_stream** stream) {
  return HandStream(*Of(connection), Accept(*Of(connection), ring_bytes, window), stream);
}
int baton_load_stream(baton_connection* connection, const void* state, size_t length,
                      baton_stream** stream) {
  return HandStream(*Of(connection), Load(*Of(connection), BytesOf(state, length)), stream);
}
void baton_forget_stream(baton_stream* stream) { delete Of(stream); }
int baton_close_stream(baton_stream* stream) {
  return Report(Stream::CloseRing(*Of(stream)->shard, Of(stream)->stream.ring()));
}

const uint8_t* baton_stream_state(const baton_stream* stream, size_t* length) {
  return Give(Of(stream)->stream.state(), length);
}
baton_buffer baton_stream_ring(const baton_stream* stream) {
  return ToC(Of(stream)->stream.ring().memory);
}

int baton_stream_completed(baton_stream* stream, const baton_completion* completion,
                           baton_stream_event* event) {
  if (const int code = CheckSize(event, "event")) return code;
  const absl::StatusOr<Stream::Event> happened =
      Of(stream)->stream.OnCompletion(FromC(CopyOf(*completion)));
  if (happened.ok()) {
    CopyTo(baton_stream_event{sizeof(baton_stream_event),
                              happened->kind == Stream::Event::Kind::kMessage, happened->has_credit,
                              ToC(happened->message), happened->end},
           event);
  }
  return Report(happened.status());
}
int baton_stream_release(baton_stream* stream, const baton_stream_event* event) {
  if (const int code = CheckSize(event, "event")) return code;
  const baton_stream_event given = CopyOf(*event);
  if (!given.has_message) return Wrong("event", "has no message");
  return Report(Of(stream)->stream.Release({.kind = Stream::Event::Kind::kMessage,
                                            .has_credit = given.has_credit,
                                            .message = FromC(given.message),
                                            .end = given.end}));
}
int baton_stream_send(baton_stream* stream, const baton_buffer* buffers, uint32_t buffer_count) {
  const Buffers all(buffers, buffer_count);
  if (!all.fit()) return Wrong("buffer_count", kTooMany);
  return Report(Of(stream)->stream.Send(all.span()));
}
int baton_stream_send_copy(baton_stream* stream, const void* message, size_t length) {
  return Report(Of(stream)->stream.SendCopy(BytesOf(message, length)));
}

// ---------------------------------------------------------------- files

int baton_open_files(baton_worker* worker, const baton_file_options* options) {
  if (options != nullptr && CheckSize(options, "options") != BATON_OK) {
    return BATON_INVALID_ARGUMENT;
  }
  const baton_file_options given = options == nullptr ? baton_file_options{} : CopyOf(*options);
  return Report(Open(WorkerOf(worker), given, &Of(worker)->application.files));
}

int baton_send_file(baton_worker* worker, baton_connection* connection, const baton_file* file,
                    const baton_file_range* range, baton_file_sender** sender) {
  if (const int code = CheckSize(range, "range")) return code;
  const baton_file_range given = CopyOf(*range);
  const auto begin = [&](Files& files, baton::FileDescriptor fd,
                         std::function<void()> wake) -> Sender {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<FileSender> begun,
                           FileSender::Begin(*files.reads, *Of(connection), std::move(fd),
                                             {given.transfer, given.offset, given.length},
                                             std::move(wake), files.pipeline));
    begun->SetHeld(given.held);  // before Advance, which then has nothing held itself
    return begun;
  };
  return MakeSender(worker, file, begin, sender);
}

int baton_resume_file(baton_worker* worker, baton_connection* connection, const baton_file* file,
                      const baton_file_transfer* transfer, baton_file_sender** sender) {
  FileTransfer state;
  std::memcpy(&state, transfer, sizeof(state));
  const auto load = [&](Files& files, baton::FileDescriptor fd, std::function<void()> wake) {
    Sender loaded = FileSender::Load(*files.reads, *Of(connection), std::move(fd), state,
                                     std::move(wake), files.pipeline);
    if (FileSender::IsForNow(loaded.status()))
      files.reads->held_files().Keep(Of(connection)->shard(), state.held);
    return loaded;
  };
  return MakeSender(worker, file, load, sender);
}

int baton_advance_file(baton_file_sender* sender, baton_stream* stream,
                       baton_file_transfer* transfer) {
  const absl::Status advanced = Of(sender)->Advance(Of(stream)->stream);
  std::memcpy(transfer, &Of(sender)->state(), sizeof(*transfer));
  return Report(advanced);
}
void baton_forget_file(baton_file_sender* sender) { delete Of(sender); }

}  // extern "C"
