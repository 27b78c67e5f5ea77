// One account of the ledger: pure logic, which the service on Baton and the baseline without it
// share.
#ifndef WORKER_EXAMPLES_LEDGER_LEDGER_ACCOUNT_H_
#define WORKER_EXAMPLES_LEDGER_LEDGER_ACCOUNT_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/examples/ledger/ledger_protocol.h"

namespace baton::ledger {

// The format of LedgerAccount::Save, and its version for Shard::SetState.
inline constexpr uint32_t kAccountStateVersion = 1;
struct AccountState {
  uint64_t client;
  uint64_t sequence;
  uint64_t total;
  uint64_t check;  // of the fields before it
};
static_assert(sizeof(AccountState) == 32);

enum class ResumePolicy : uint8_t {
  kRefuse,  // accounts outlive processes: a peer that resumes is wrong
  kAllow,   // an account's first request may restore it
};

class LedgerAccount {
 public:
  LedgerAccount() = default;

  // kDataLoss: `state` is not what Save returned. An empty state is a new account.
  static absl::StatusOr<LedgerAccount> Load(absl::Span<const uint8_t> state,
                                            uint32_t state_version);
  std::array<uint8_t, sizeof(AccountState)> Save() const;

  // Applies one request message and returns the reply to it, which names `version`. An error says
  // what is wrong with the request, and leaves the account unchanged.
  absl::StatusOr<Reply> Apply(absl::Span<const uint8_t> message, uint16_t version,
                              ResumePolicy policy);

  uint64_t client() const { return client_; }
  uint64_t sequence() const { return sequence_; }
  uint64_t total() const { return total_; }

 private:
  absl::Status Check(absl::Span<const uint8_t> message, const Request& request,
                     ResumePolicy policy) const;

  uint64_t client_ = 0;  // 0: no request yet
  uint64_t sequence_ = 0;
  uint64_t total_ = 0;
};

}  // namespace baton::ledger

#endif  // WORKER_EXAMPLES_LEDGER_LEDGER_ACCOUNT_H_
