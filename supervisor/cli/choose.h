// The service, shard or worker that a command line may leave out where there is only one.
#ifndef SUPERVISOR_CLI_CHOOSE_H_
#define SUPERVISOR_CLI_CHOOSE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "supervisor/cli/session.h"

namespace baton {

enum class Purpose : uint8_t { kLook, kChange };

// Sets an empty `*service` to the name of the only service. Before a change it also says on
// standard error which one it took. kInvalidArgument, with the names, when there are several;
// kNotFound when there is none.
absl::Status ChooseService(Session* session, Purpose purpose, std::string* service);

// Reads the words [SERVICE] and [NUMBER], of which `*service` is the first that was typed. A first
// word that is a number and not the name of a service is the number. Then chooses the service as
// above. `*number` stays empty when none was typed.
absl::Status ChooseServiceOf(Session* session, Purpose purpose, std::string* service,
                             std::optional<uint64_t>* number);

absl::StatusOr<v1::GetWorkerResponse> AskWorker(Session* session, const std::string& service,
                                                uint64_t id);

// Names of services.
std::vector<std::string> NamesOf(const v1::ListServicesResponse& services);
// kNotFound, with the names of those that there are.
absl::Status NoService(const std::string& name, const v1::ListServicesResponse& services);

// The number of the only worker, shard or connection. kInvalidArgument, which says what to type,
// when there are several; kNotFound when there is none.
absl::StatusOr<uint64_t> OnlyWorker(Session* session, const std::string& service);
absl::StatusOr<uint64_t> OnlyShard(Session* session, const std::string& service);
absl::StatusOr<uint64_t> OnlyConnection(Session* session, const std::string& service);

}  // namespace baton

#endif  // SUPERVISOR_CLI_CHOOSE_H_
