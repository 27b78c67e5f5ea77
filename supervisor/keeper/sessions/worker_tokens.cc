#include "supervisor/keeper/sessions/worker_tokens.h"

#include <algorithm>
#include <cstddef>

#include "lib/base/random_bytes.h"

namespace baton::keeper {
namespace {

constexpr size_t kTokensPerWorker = 4;

}  // namespace

std::string WorkerTokens::New(uint64_t worker_id) {
  const auto of_worker = [&](const auto& token) { return token.second == worker_id; };
  if (static_cast<size_t>(std::count_if(tokens_.begin(), tokens_.end(), of_worker)) >=
      kTokensPerWorker) {
    Forget(worker_id);
  }
  std::string token = RandomBytes(kWorkerTokenBytes);
  tokens_[token] = worker_id;
  return token;
}

absl::StatusOr<uint64_t> WorkerTokens::Redeem(const std::string& token) {
  const auto found = tokens_.find(token);
  if (found == tokens_.end()) {
    return absl::UnauthenticatedError(
        "the token is unknown or was used: ask the keeper for a new one");
  }
  const uint64_t worker_id = found->second;
  tokens_.erase(found);
  return worker_id;
}

void WorkerTokens::Forget(uint64_t worker_id) {
  std::erase_if(tokens_, [&](const auto& token) { return token.second == worker_id; });
}

}  // namespace baton::keeper
