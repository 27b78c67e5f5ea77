// Reads a stream of messages of any length from each peer, and answers each with the bytes so far.
// Its peer is pour_main.cc.
#include "worker/stream.h"

#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <set>

#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/heap_grants.h"
#include "worker/worker.h"

namespace baton::guide {
namespace {

constexpr uint32_t kFormat = 1;
constexpr uint32_t kRingBytes = 1 << 20;
constexpr uint16_t kWindow = 32;

// A connection's state.
struct Tally {
  stream::StreamState ends;
  uint64_t bytes;
  uint64_t unanswered;  // messages
};

absl::Status Save(Shard& shard, Connection& connection, const Stream& stream, Tally tally) {
  std::memcpy(&tally.ends, stream.state().data(), Stream::kStateBytes);
  return shard.SetState(connection, {reinterpret_cast<const uint8_t*>(&tally), sizeof(tally)},
                        kFormat);
}

class Tallies final : public Service {
 public:
  // Frees rings that no state knows, and revokes what was granted of them.
  absl::Status OnAdopt(Shard& shard) override {
    std::set<uint64_t> known;
    for (Connection* connection : shard.connections()) {
      if (connection->state().size() != sizeof(Tally)) continue;
      BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Load(*connection, connection->state()));
      known.insert(stream.ring().memory.offset);
    }
    return HeapGrants::FreeLost(
        shard, [&](const Buffer& buffer) { return known.contains(buffer.offset); });
  }

  void OnCompletion(Shard& shard, const Completion& done) override {
    Connection& connection = *done.connection;
    const absl::Status status = Handle(shard, connection, done);
    if (status.ok()) return;
    std::cerr << "connection " << connection.index() << ": " << status << std::endl;
    shard.Abandon();
    HeapGrants::RevokeLost(shard).IgnoreError();  // of a ring that was opened
    const bool asks = done.kind == Completion::Kind::kConnectRequest;
    (asks ? shard.Reject(connection) : shard.Disconnect(connection)).IgnoreError();
  }

 private:
  static absl::Status Handle(Shard& shard, Connection& connection, const Completion& done) {
    using Kind = Completion::Kind;
    if (done.kind == Kind::kConnectRequest) {
      BATON_ASSIGN_OR_RETURN(const StreamRing ring, Stream::OpenRing(shard, kRingBytes));
      const absl::StatusOr<Stream> stream = Stream::Accept(connection, ring, kWindow);
      if (stream.ok()) return Save(shard, connection, *stream, {});
      BATON_RETURN_IF_ERROR(Stream::CloseRing(shard, ring));
      return stream.status();
    }
    if (connection.state().size() != sizeof(Tally)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(Stream stream, Stream::Load(connection, connection.state()));
    if (done.kind == Kind::kEstablished) return absl::OkStatus();
    const bool is_over = done.kind == Kind::kDisconnected || done.kind == Kind::kConnectFailed;
    if (is_over) return Stream::CloseRing(shard, stream.ring());
    return Count(shard, connection, done, stream);
  }

  // Messages that cannot be answered now are answered at a later event, which has credit.
  static absl::Status Count(Shard& shard, Connection& connection, const Completion& done,
                            Stream& stream) {
    Tally tally;
    std::memcpy(&tally, connection.state().data(), sizeof(tally));
    BATON_ASSIGN_OR_RETURN(const Stream::Event event, stream.OnCompletion(done));
    const bool is_message = event.kind == Stream::Event::Kind::kMessage;
    if (is_message) {
      tally.bytes += event.message.length;
      ++tally.unanswered;
    }
    for (; tally.unanswered > 0; --tally.unanswered) {
      const auto* const total = reinterpret_cast<const uint8_t*>(&tally.bytes);
      const absl::Status sent = stream.SendCopy({total, sizeof(tally.bytes)});
      if (absl::IsResourceExhausted(sent)) break;
      BATON_RETURN_IF_ERROR(sent);
    }
    if (is_message) BATON_RETURN_IF_ERROR(stream.Release(event));
    return Save(shard, connection, stream, tally);
  }
};

absl::Status Serve(const WorkerOptions& options, const char* listen) {
  Tallies service;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(listen));
  BATON_RETURN_IF_ERROR(worker->Listen(address.host, address.port).status());
  return worker->Run();
}

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: stream SOCKET HOST:PORT\n";
    return 2;
  }
  const absl::Status status =
      baton::guide::Serve({.socket = argv[1],
                           .service = "counter",
                           .reads_state_version_min = baton::guide::kFormat,
                           .reads_state_version_max = baton::guide::kFormat,
                           .writes_state_version = baton::guide::kFormat,
                           .commit_mode = baton::CommitMode::kAfterEachCompletion},
                          argv[2]);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
