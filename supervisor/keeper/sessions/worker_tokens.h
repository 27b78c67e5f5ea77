// Tokens with which workers prove their identity to control.
#ifndef SUPERVISOR_KEEPER_SESSIONS_WORKER_TOKENS_H_
#define SUPERVISOR_KEEPER_SESSIONS_WORKER_TOKENS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace baton::keeper {

// Bounded: forgets a worker's tokens when it asks for too many. Thread-compatible.
class WorkerTokens {
 public:
  std::string New(uint64_t worker_id);

  // Returns the worker that `token` was made for. Each token is good once.
  absl::StatusOr<uint64_t> Redeem(const std::string& token);

  void Forget(uint64_t worker_id);

 private:
  std::map<std::string, uint64_t> tokens_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_WORKER_TOKENS_H_
