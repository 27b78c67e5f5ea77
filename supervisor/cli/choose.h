// Chooses the service, shard or worker that a command line may leave out if there is only one.
#ifndef SUPERVISOR_CLI_CHOOSE_H_
#define SUPERVISOR_CLI_CHOOSE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "supervisor/cli/invocation.h"

namespace baton {

enum class Purpose : uint8_t { kLook, kChange };

// Sets an empty `*service` to the name of the only service. Before a change it also prints on
// standard error which service it took. kInvalidArgument: there are several; the message names
// them. kNotFound: there is none.
absl::Status ChooseService(Invocation* invocation, Purpose purpose, std::string* service);

// Reads the words [SERVICE] and [NUMBER]. `*service` is the first word that was typed; if it is a
// number and not the name of a service, it becomes `*number`. Then chooses the service as above.
// `*number` stays empty if none was typed.
absl::Status ChooseServiceOf(Invocation* invocation, Purpose purpose, std::string* service,
                             std::optional<uint64_t>* number);

absl::StatusOr<v1::GetWorkerResponse> AskWorker(Invocation* invocation, const std::string& service,
                                                uint64_t id);

std::vector<std::string> NamesOf(const v1::ListServicesResponse& services);
// Returns kNotFound, with the names of the services that exist.
absl::Status NoService(const std::string& name, const v1::ListServicesResponse& services);

// Return the number of the only worker, shard or connection. kInvalidArgument: there are several;
// the message says what to type. kNotFound: there is none.
absl::StatusOr<uint64_t> OnlyWorker(Invocation* invocation, const std::string& service);
absl::StatusOr<uint64_t> OnlyShard(Invocation* invocation, const std::string& service);
absl::StatusOr<uint64_t> OnlyConnection(Invocation* invocation, const std::string& service);

}  // namespace baton

#endif  // SUPERVISOR_CLI_CHOOSE_H_
