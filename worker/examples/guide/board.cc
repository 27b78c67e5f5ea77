// Chapter 5, first part: peers read their totals out of the service's memory, with RDMA READs that
// no worker takes part in.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/guide/reply_service.h"

namespace baton::guide {
namespace {

class Board final : public ReplyService {
  // The first owner of a shard grants its board. The grant outlives workers, so its key is state.
  absl::Status OnAdopt(Shard& shard) override {
    if (!shard.state().empty()) return absl::OkStatus();
    Worker& worker = shard.worker();
    BATON_ASSIGN_OR_RETURN(
        const Worker::Grant grant,
        worker.GrantRemoteAccess(BoardOf(shard), BoardBytes(worker), verbs::kRemoteRead));
    return shard.SetShardState({reinterpret_cast<const uint8_t*>(&grant), sizeof(grant)}, 1);
  }

  absl::StatusOr<std::string> Reply(Shard& shard, Connection& connection,
                                    const std::string& message) override {
    uint64_t amount = 0;
    if (message == "where") return Where(shard, connection);
    if (!absl::SimpleAtoi(message, &amount)) return absl::InvalidArgumentError("not a number");
    uint64_t total = 0;
    if (!connection.state().empty()) std::memcpy(&total, connection.state().data(), sizeof(total));
    total += amount;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&total);
    // Not part of the transaction: peers can read it before the commit. A successor that receives
    // the message again writes the same total.
    std::memcpy(shard.worker().buffers().data() + BoardOf(shard) + PlaceOf(connection), bytes,
                sizeof(total));
    BATON_RETURN_IF_ERROR(shard.SetState(connection, {bytes, sizeof(total)}, 1));
    return absl::StrCat(total);
  }

  // The key and the address that a peer's READ needs.
  static std::string Where(const Shard& shard, const Connection& connection) {
    Worker::Grant grant;
    std::memcpy(&grant, shard.state().data(), sizeof(grant));
    return absl::StrCat(grant.rkey, " ", grant.remote_address + PlaceOf(connection));
  }

  static uint64_t PlaceOf(const Connection& connection) {
    return connection.index() * sizeof(uint64_t);
  }
  static uint64_t BoardBytes(const Worker& worker) {
    return worker.capacity().connections * sizeof(uint64_t);
  }
  static uint64_t BoardOf(const Shard& shard) {
    return FreeBuffers(shard.worker()) + shard.index() * BoardBytes(shard.worker());
  }
};

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  baton::guide::Board board;
  return baton::guide::Serve(board,
                             {.service = "counter",
                              .reads_state_version_min = 1,
                              .reads_state_version_max = 1,
                              .writes_state_version = 1,
                              .commit_mode = baton::CommitMode::kAfterEachCompletion},
                             argc, argv);
}
