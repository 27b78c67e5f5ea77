#include "worker/examples/ledger/ledger_account.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::ledger {
namespace {

uint64_t StateCheck(const AccountState& state) {
  uint64_t sum = 0x6c62272e07bb0142u;
  for (uint64_t word : {state.client, state.sequence, state.total}) sum = ChecksumStep(sum, word);
  return sum;
}

}  // namespace

absl::StatusOr<LedgerAccount> LedgerAccount::Load(absl::Span<const uint8_t> state,
                                                  uint32_t state_version) {
  LedgerAccount account;
  if (state.empty()) return account;
  if (state_version != kAccountStateVersion || state.size() != sizeof(AccountState)) {
    return absl::DataLossError(absl::StrCat("account state of version ", state_version, " with ",
                                            state.size(), " bytes; this binary reads version ",
                                            kAccountStateVersion, " with ", sizeof(AccountState),
                                            ": start a binary that reads it"));
  }
  AccountState saved;
  std::memcpy(&saved, state.data(), sizeof(saved));
  if (saved.check != StateCheck(saved)) {
    return absl::DataLossError("account state with a wrong check: it is torn or not an account");
  }
  account.client_ = saved.client;
  account.sequence_ = saved.sequence;
  account.total_ = saved.total;
  return account;
}

std::array<uint8_t, sizeof(AccountState)> LedgerAccount::Save() const {
  AccountState state{client_, sequence_, total_, 0};
  state.check = StateCheck(state);
  std::array<uint8_t, sizeof(AccountState)> bytes;
  std::memcpy(bytes.data(), &state, sizeof(state));
  return bytes;
}

absl::Status LedgerAccount::Check(absl::Span<const uint8_t> message, const Request& request,
                                  ResumePolicy policy) const {
  if (request.magic != kRequestMagic || request.protocol != kProtocol) {
    return absl::InvalidArgumentError("not a request of ledger protocol 1");
  }
  if (request.length != message.size()) {
    return absl::InvalidArgumentError(absl::StrCat("request says it has ", request.length,
                                                   " bytes and came with ", message.size()));
  }
  if (request.check != Checksum(message)) {
    return absl::InvalidArgumentError(
        absl::StrCat("request that calls itself ", request.sequence, " has a wrong check"));
  }
  if (request.client == 0 || (client_ != 0 && request.client != client_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("request of client ", request.client, " in the account of client ", client_));
  }
  uint64_t last = sequence_;
  if ((request.flags & kFlagResume) != 0) {
    if (policy == ResumePolicy::kRefuse || client_ != 0) {
      return absl::FailedPreconditionError(
          "request resumes an account that is kept here: nothing was lost, so it may not");
    }
    last = request.resume_sequence;
  }
  if (request.sequence != last + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("request ", request.sequence, " follows ", last,
                     request.sequence <= last ? ": it was repeated"
                                              : ": a request before it was lost or overtaken"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Reply> LedgerAccount::Apply(absl::Span<const uint8_t> message, uint16_t version,
                                           ResumePolicy policy) {
  if (message.size() < sizeof(Request) || message.size() % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("request of ", message.size(), " bytes"));
  }
  Request request;
  std::memcpy(&request, message.data(), sizeof(request));
  BATON_RETURN_IF_ERROR(Check(message, request, policy));

  if ((request.flags & kFlagResume) != 0) total_ = request.resume_total;
  client_ = request.client;
  sequence_ = request.sequence;
  total_ += request.amount;

  Reply reply{};
  reply.magic = kReplyMagic;
  reply.protocol = kProtocol;
  reply.version = version;
  reply.client = client_;
  reply.sequence = sequence_;
  reply.amount = request.amount;
  reply.total = total_;
  reply.request_check = request.check;
  reply.check = Checksum({reinterpret_cast<const uint8_t*>(&reply), sizeof(reply)});
  return reply;
}

}  // namespace baton::ledger
