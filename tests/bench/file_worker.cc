// bench-file-worker: sends files to peers that ask for them, through FileSender or from regions,
// brokered or native. `./run bench memory` starts it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/stream/ring.h"
#include "tests/bench/bench_file.h"
#include "tests/bench/worker_main.h"
#include "worker/file_reads.h"
#include "worker/file_sender.h"
#include "worker/heap.h"
#include "worker/region_cache.h"
#include "worker/stream.h"
#include "worker/worker.h"

namespace baton::bench {
namespace {

constexpr uint32_t kFormat = 1;
constexpr uint32_t kRingBytes = 4096;  // requests are short
constexpr uint16_t kWindow = 32;
// The pieces of a file that is read and of a region: as long as the WRITEs of the plain ways, so
// that both have as many requests.
constexpr uint32_t kPieceBytes = 1 << 20;
constexpr uint32_t kDepth = 3;  // the heap has as many again, which the peer has not acknowledged
constexpr uint64_t kMostCachedBytes = uint64_t{1} << 30;

// A connection's state.
struct Committed {
  stream::StreamState ends;
  FileTransfer transfer;
};
static_assert(sizeof(Committed) <= 256);  // what a service has if it does not ask for more

// A file that is sent from a region of its own pages.
struct RegionTransfer {
  RegionCache::Lease lease;
  bool keeps = false;
  uint64_t next = 0, end = 0;  // bytes
  uint64_t last_send = 0;      // the sequence number of its last request
  bool is_over = false;        // all requests have completed
};

// A connection while this worker has it. The stream stays as it was staged last.
struct Served {
  explicit Served(const Stream& opened) : stream(opened) {}

  Stream stream;
  FileTransfer transfer = {};
  // Both empty: no transfer is under way.
  std::unique_ptr<FileSender> sender;
  std::optional<RegionTransfer> region;
};

class FileService final : public Service {
 public:
  absl::Status OnAdopt(Shard& shard) override {
    if (reads_ != nullptr) return absl::OkStatus();
    RegionCache::Options cached;
    cached.most_bytes = kMostCachedBytes;
    BATON_ASSIGN_OR_RETURN(cache_, RegionCache::Create(shard.worker(), cached));
    BATON_ASSIGN_OR_RETURN(reads_, FileReads::Create(shard.worker(), {}));
    if (!reads_->uses_io_uring()) {
      std::fprintf(stderr, "bench-file-worker: reads without io_uring: %s\n",
                   reads_->fallback_reason().c_str());
    }
    return absl::OkStatus();
  }
  void OnCompletion(Shard& shard, const Completion& done) override {
    const bool asks = done.kind == Kind::kConnectRequest;
    Judge(*done.connection, Handle(shard, done), asks);
  }
  void OnRelease(Shard& shard) override { End(shard); }
  void OnLost(Shard& shard) override { End(shard); }

 private:
  using Kind = Completion::Kind;

  void End(Shard& shard) {
    served_.clear();  // there is one shard
    if (reads_ != nullptr) reads_->Finish(shard);
  }

  void Judge(Connection& connection, const absl::Status& status, bool asks = false) {
    if (status.ok()) return;
    std::fprintf(stderr, "bench-file-worker: %s\n", status.ToString().c_str());
    served_.erase(connection.index());
    Shard& shard = connection.shard();
    shard.Abandon();
    (asks ? shard.Reject(connection) : shard.Disconnect(connection)).IgnoreError();
  }

  absl::Status Handle(Shard& shard, const Completion& done) {
    Connection& connection = *done.connection;
    if (done.kind == Kind::kConnectRequest) return Accept(shard, connection);
    if (done.kind == Kind::kDisconnected || done.kind == Kind::kConnectFailed) {
      served_.erase(connection.index());
      if (connection.state().size() != sizeof(Committed)) return absl::OkStatus();
      BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Load(connection, connection.state()));
      return Stream::CloseRing(shard, stream.ring());
    }
    const auto found = served_.find(connection.index());
    if (found == served_.end() || done.kind == Kind::kEstablished) return absl::OkStatus();
    if (done.status != verbs::CompletionStatus::kSuccess) return absl::OkStatus();
    return Serve(shard, connection, done, found->second);
  }

  absl::Status Accept(Shard& shard, Connection& connection) {
    BATON_ASSIGN_OR_RETURN(const StreamRing ring, Stream::OpenRing(shard, kRingBytes));
    BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Accept(connection, ring, kWindow));
    const auto [place, is_new] = served_.try_emplace(connection.index(), stream);
    if (!is_new) return absl::InternalError("a connection has not ended");
    return Save(connection, place->second);
  }

  absl::Status Serve(Shard& shard, Connection& connection, const Completion& done, Served& served) {
    BATON_ASSIGN_OR_RETURN(const Stream::Event event, served.stream.OnCompletion(done));
    if (event.kind == Stream::Event::Kind::kMessage) {
      FileRequest request = {};
      if (event.message.length != sizeof(request)) {
        return absl::InvalidArgumentError("a message is no request");
      }
      std::memcpy(&request, shard.heap().At(event.message), sizeof(request));
      BATON_RETURN_IF_ERROR(served.stream.Release(event));
      BATON_RETURN_IF_ERROR(Begin(connection, request, &served));
    }
    if (done.kind == Kind::kSend) BATON_RETURN_IF_ERROR(EndRegion(served, done));
    return Advance(connection, served);
  }

  absl::Status Begin(Connection& connection, const FileRequest& request, Served* served) {
    if (served->sender != nullptr || served->region.has_value()) {
      return absl::InvalidArgumentError("a file is being sent");
    }
    if (request.bytes > file_bytes_) {
      BATON_ASSIGN_OR_RETURN(file_, MakeFile(request.bytes));
      file_bytes_ = request.bytes;
    }
    if (!UsesFileSender(request.way)) return BeginRegion(request, served);
    FileDescriptor file = CopyOf(file_.get());
    if (!file) return absl::ResourceExhaustedError("no descriptor is free for a file");
    const auto wake = [this, &connection] { Wake(connection); };
    FileSender::Options options;
    options.piece_bytes = kPieceBytes;
    options.depth = kDepth;
    options.checksums = request.way == SendWay::kSendChecked;
    BATON_ASSIGN_OR_RETURN(served->sender,
                           FileSender::Begin(*reads_, connection, std::move(file),
                                             {request.transfer, 0, request.bytes}, wake, options));
    return absl::OkStatus();
  }

  absl::Status BeginRegion(const FileRequest& request, Served* served) {
    RegionTransfer region;
    BATON_ASSIGN_OR_RETURN(region.lease, cache_->Acquire(file_.get(), 0, request.bytes));
    region.keeps = request.way == SendWay::kCachedRegion;
    region.end = request.bytes;
    served->region = std::move(region);
    return absl::OkStatus();
  }

  // Stops where the peer has no room, and goes on at a later event.
  static absl::Status SendRegion(Connection& connection, Served& served) {
    RegionTransfer& region = *served.region;
    while (region.next < region.end) {
      const uint64_t bytes = std::min<uint64_t>(kPieceBytes, region.end - region.next);
      const Buffer piece = region.lease.At(region.next, static_cast<uint32_t>(bytes));
      const absl::Status sent = served.stream.Send({&piece, 1});
      if (absl::IsResourceExhausted(sent)) return absl::OkStatus();
      BATON_RETURN_IF_ERROR(sent);
      region.next += bytes;
      region.last_send = connection.next_send() - 1;
    }
    if (!region.is_over) return absl::OkStatus();
    constexpr uint8_t kEnd[kEndBytes] = {};
    absl::Status sent = served.stream.SendCopy(kEnd);
    if (absl::IsResourceExhausted(sent)) return absl::OkStatus();
    served.region.reset();
    return sent;
  }

  absl::Status EndRegion(Served& served, const Completion& done) {
    if (!served.region.has_value() || served.region->next < served.region->end) {
      return absl::OkStatus();
    }
    if (done.sequence != served.region->last_send) return absl::OkStatus();
    served.region->is_over = true;
    served.region->lease = {};
    return served.region->keeps ? absl::OkStatus() : cache_->InvalidateAll();
  }

  void Wake(Connection& connection) {
    const auto found = served_.find(connection.index());
    if (found != served_.end()) Judge(connection, Advance(connection, found->second));
  }

  static absl::Status Advance(Connection& connection, Served& served) {
    if (served.sender != nullptr) {
      BATON_RETURN_IF_ERROR(served.sender->Advance(served.stream));
      served.transfer = served.sender->state();
      if (served.sender->done()) served.sender.reset();
    }
    if (served.region.has_value()) BATON_RETURN_IF_ERROR(SendRegion(connection, served));
    return Save(connection, served);
  }

  static absl::Status Save(Connection& connection, const Served& served) {
    Committed committed = {};
    std::memcpy(&committed.ends, served.stream.state().data(), Stream::kStateBytes);
    committed.transfer = served.transfer;
    return connection.shard().SetState(
        connection, {reinterpret_cast<const uint8_t*>(&committed), sizeof(committed)}, kFormat);
  }

  std::unique_ptr<FileReads> reads_;
  std::unique_ptr<RegionCache> cache_;
  FileDescriptor file_;  // as long as the longest that was asked for
  uint64_t file_bytes_ = 0;
  std::map<uint32_t, Served> served_;  // by the connection's index
};

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  baton::bench::FileService service;
  return baton::bench::ServeWorker(argc, argv, "bench-file-worker",
                                   "Sends the files of `./run bench memory` as a worker of Baton.",
                                   &service);
}
