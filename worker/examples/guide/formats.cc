// Chapter 2: the counter with a new format of its state. Format 2 has, beside a connection's total,
// how many messages it was made of. The third argument says which format this program writes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/guide/reply_service.h"

namespace baton::guide {
namespace {

struct Account {  // format 2; format 1 ends after the total
  uint64_t total = 0;
  uint64_t messages = 0;
};

size_t BytesOf(uint32_t format) { return format == 1 ? sizeof(uint64_t) : sizeof(Account); }

absl::StatusOr<Account> Load(absl::Span<const uint8_t> state, uint32_t format) {
  Account account;
  if (state.empty()) return account;  // a new connection
  if (state.size() != BytesOf(format)) return absl::DataLossError("the state is damaged");
  std::memcpy(&account, state.data(), state.size());
  return account;
}

class Counter final : public ReplyService {
 public:
  explicit Counter(uint32_t writes) : writes_(writes) {}

 private:
  absl::StatusOr<std::string> Reply(Shard& shard, Connection& connection,
                                    const std::string& message) override {
    uint64_t amount = 0;
    if (!absl::SimpleAtoi(message, &amount)) return absl::InvalidArgumentError("not a number");
    BATON_ASSIGN_OR_RETURN(Account account, Load(connection.state(), connection.state_version()));
    account.total += amount;
    ++account.messages;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&account);
    BATON_RETURN_IF_ERROR(shard.SetState(connection, {bytes, BytesOf(writes_)}, writes_));
    return writes_ == 1 ? absl::StrCat(account.total)
                        : absl::StrCat(account.total, ", message ", account.messages);
  }

  const uint32_t writes_;
};

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  const uint32_t writes = argc > 3 && argv[3] == std::string_view("2") ? 2 : 1;
  baton::guide::Counter counter(writes);
  return baton::guide::Serve(counter,
                             {.service = "counter",
                              .version = writes == 1 ? "2" : "3",
                              .reads_state_version_min = 1,
                              .reads_state_version_max = 2,
                              .writes_state_version = writes,
                              .commit_mode = baton::CommitMode::kAfterEachCompletion},
                             argc, argv);
}
