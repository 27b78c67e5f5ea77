// Chapter 6: sends files. A peer asks with a name, and gets the file's length (8 bytes, little-
// endian) and its bytes in pieces (lib/stream/file_pieces.h).
#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/file_sender.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"
#include "worker/held_files.h"
#include "worker/stream.h"
#include "worker/worker.h"

namespace baton::guide {
namespace {

constexpr uint32_t kFormat = 1;
constexpr uint32_t kRingBytes = 4096;  // for names
constexpr uint16_t kWindow = 16;

// A connection's state.
struct Download {
  stream::StreamState ends;
  FileTransfer transfer;
  char name[48];  // ends with a zero byte
};
static_assert(sizeof(Download) == 256);

Download DownloadOf(const Connection& connection) {
  Download download = {};
  if (connection.state().size() == sizeof(download)) {
    std::memcpy(&download, connection.state().data(), sizeof(download));
  }
  return download;
}

absl::Status Save(Connection& connection, const Stream& stream, Download download) {
  std::memcpy(&download.ends, stream.state().data(), Stream::kStateBytes);
  return connection.shard().SetState(
      connection, {reinterpret_cast<const uint8_t*>(&download), sizeof(download)}, kFormat);
}

class Files final : public Service {
 public:
  explicit Files(int directory) : directory_(directory) {}

  absl::Status MakeReads(Worker& worker) {
    BATON_ASSIGN_OR_RETURN(reads_, FileReads::Create(worker, {}));
    return absl::OkStatus();
  }

  absl::Status OnAdopt(Shard& shard) override {
    if (!reads_) return absl::FailedPreconditionError("reads_: MakeReads comes first");
    ForgetSenders(shard);  // of an OnAdopt that failed
    std::set<uint64_t> rings;
    for (Connection* connection : shard.connections()) {
      const absl::StatusOr<Stream> stream = Stream::Load(*connection, connection->state());
      if (!stream.ok()) continue;
      rings.insert(stream->ring().memory.offset);
      const absl::Status resumed = Resume(*connection);
      if (resumed.ok()) continue;
      std::cerr << "connection " << connection->index() << ": " << resumed << std::endl;
      BATON_RETURN_IF_ERROR(shard.Disconnect(*connection));
    }
    reads_->held_files().Adopt(shard);
    return HeapGrants::FreeLost(
        shard, [&](const Buffer& buffer) { return rings.contains(buffer.offset); });
  }

  void OnCompletion(Shard&, const Completion& done) override {
    Connection& connection = *done.connection;
    EndIfFailed(connection, Handle(connection, done),
                done.kind == Completion::Kind::kConnectRequest);
  }

  // No read may write into the heap when another worker has it.
  void OnRelease(Shard& shard) override {
    ForgetSenders(shard);
    reads_->Finish(shard);
  }
  void OnLost(Shard& shard) override { OnRelease(shard); }

 private:
  void ForgetSenders(const Shard& shard) {
    std::erase_if(senders_, [&](const auto& entry) { return &entry.first->shard() == &shard; });
  }

  void EndIfFailed(Connection& connection, const absl::Status& status, bool asks = false) {
    if (status.ok()) return;
    std::cerr << "connection " << connection.index() << ": " << status << std::endl;
    Shard& shard = connection.shard();
    shard.Abandon();
    HeapGrants::RevokeLost(shard).IgnoreError();  // of a ring that was opened
    senders_.erase(&connection);
    (asks ? shard.Reject(connection) : shard.Disconnect(connection)).IgnoreError();
  }

  absl::Status Handle(Connection& connection, const Completion& done) {
    using Kind = Completion::Kind;
    Shard& shard = connection.shard();
    if (done.kind == Kind::kConnectRequest) {
      BATON_ASSIGN_OR_RETURN(const StreamRing ring, Stream::OpenRing(shard, kRingBytes));
      const absl::StatusOr<Stream> stream = Stream::Accept(connection, ring, kWindow);
      if (stream.ok()) return Save(connection, *stream, {});
      BATON_RETURN_IF_ERROR(Stream::CloseRing(shard, ring));
      return stream.status();
    }
    if (connection.state().empty() || done.kind == Kind::kEstablished) return absl::OkStatus();
    if (done.kind == Kind::kReceive || done.kind == Kind::kSend) return Advance(connection, &done);
    senders_.erase(&connection);
    BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Load(connection, connection.state()));
    return Stream::CloseRing(shard, stream.ring());
  }

  // Goes on with the peer's download after a completion, or without one, when a read has completed.
  absl::Status Advance(Connection& connection, const Completion* done) {
    Download download = DownloadOf(connection);
    BATON_ASSIGN_OR_RETURN(Stream stream, Stream::Load(connection, connection.state()));
    Stream::Event event;
    if (done != nullptr) {
      BATON_ASSIGN_OR_RETURN(event, stream.OnCompletion(*done));
    }
    if (event.kind == Stream::Event::Kind::kMessage) {
      BATON_RETURN_IF_ERROR(Begin(connection, event, stream, download));
      BATON_RETURN_IF_ERROR(stream.Release(event));
    }
    if (const auto found = senders_.find(&connection); found != senders_.end()) {
      FileSender& sender = *found->second;
      BATON_RETURN_IF_ERROR(sender.Advance(stream));
      download.transfer = sender.state();
      if (sender.done()) senders_.erase(found);
    }
    return Save(connection, stream, download);
  }

  absl::Status Begin(Connection& connection, const Stream::Event& event, Stream& stream,
                     Download& download) {
    const uint8_t* const name = connection.shard().heap().At(event.message);
    if (senders_.contains(&connection) || event.message.length >= sizeof(download.name)) {
      return absl::InvalidArgumentError("a second file at a time, or too long a name");
    }
    std::memset(download.name, 0, sizeof(download.name));
    std::memcpy(download.name, name, event.message.length);
    BATON_ASSIGN_OR_RETURN(FileDescriptor file, Open(download.name));
    const off_t length = lseek(file.get(), 0, SEEK_END);
    const FileSender::Range range = {.transfer = 1, .length = static_cast<uint64_t>(length)};
    BATON_ASSIGN_OR_RETURN(auto sender,
                           FileSender::Begin(*reads_, connection, std::move(file), range,
                                             [this, &connection] { Wake(connection); }, {}));
    senders_[&connection] = std::move(sender);
    return stream.SendCopy({reinterpret_cast<const uint8_t*>(&range.length), sizeof(range.length)});
  }

  absl::Status Resume(Connection& connection) {
    const Download download = DownloadOf(connection);
    if (download.transfer.next == download.transfer.end) return absl::OkStatus();
    absl::StatusOr<FileDescriptor> file = Open(download.name);
    if (!file.ok()) file = FileDescriptor();  // Load has the one that is held
    BATON_ASSIGN_OR_RETURN(
        auto sender, FileSender::Load(*reads_, connection, *std::move(file), download.transfer,
                                      [this, &connection] { Wake(connection); }, {}));
    senders_[&connection] = std::move(sender);
    return absl::OkStatus();
  }

  void Wake(Connection& connection) { EndIfFailed(connection, Advance(connection, nullptr)); }

  absl::StatusOr<FileDescriptor> Open(const std::string& name) const {
    if (name.find('/') != std::string::npos) return absl::InvalidArgumentError("a name, no path");
    FileDescriptor file(
        openat(directory_, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file) return ErrnoStatus(errno, "open");
    return file;
  }

  const int directory_;
  std::unique_ptr<FileReads> reads_;
  std::map<const Connection*, std::unique_ptr<FileSender>>
      senders_;  // after reads_, which they use
};

absl::Status Serve(const WorkerOptions& options, const char* listen, const char* path) {
  const FileDescriptor directory(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return ErrnoStatus(errno, path);
  Files service(directory.get());
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(service.MakeReads(*worker));
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(listen));
  BATON_RETURN_IF_ERROR(worker->Listen(address.host, address.port).status());
  return worker->Run();
}

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: files SOCKET HOST:PORT DIRECTORY\n";
    return 2;
  }
  const absl::Status status =
      baton::guide::Serve({.socket = argv[1],
                           .service = "counter",
                           .reads_state_version_min = baton::guide::kFormat,
                           .reads_state_version_max = baton::guide::kFormat,
                           .writes_state_version = baton::guide::kFormat,
                           .commit_mode = baton::CommitMode::kAfterEachCompletion},
                          argv[2], argv[3]);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
