// Chapter 2: adds up the numbers that each peer sends. A peer's total is the state of its
// connection; how many messages a shard has dealt with is the state of the shard.
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

constexpr uint32_t kFormat = 1;  // of both states: one uint64_t

uint64_t Load(absl::Span<const uint8_t> state) {
  uint64_t value = 0;  // no state yet
  if (state.size() == sizeof(value)) std::memcpy(&value, state.data(), sizeof(value));
  return value;
}

absl::Span<const uint8_t> Save(const uint64_t& value) {
  return {reinterpret_cast<const uint8_t*>(&value), sizeof(value)};
}

class Counter final : public ReplyService {
  absl::StatusOr<std::string> Reply(Shard& shard, Connection& connection,
                                    const std::string& message) override {
    uint64_t amount = 0;
    if (!absl::SimpleAtoi(message, &amount)) return absl::InvalidArgumentError("not a number");
    const uint64_t total = Load(connection.state()) + amount;
    const uint64_t messages = Load(shard.state()) + 1;
    BATON_RETURN_IF_ERROR(shard.SetState(connection, Save(total), kFormat));
    BATON_RETURN_IF_ERROR(shard.SetShardState(Save(messages), kFormat));
    return absl::StrCat(total, ", message ", messages, " of shard ", shard.index());
  }
};

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  baton::guide::Counter counter;
  return baton::guide::Serve(counter,
                             {.service = "counter",
                              .version = "1",
                              .reads_state_version_min = 1,
                              .reads_state_version_max = 1,
                              .writes_state_version = 1,
                              .commit_mode = baton::CommitMode::kAfterEachCompletion},
                             argc, argv);
}
