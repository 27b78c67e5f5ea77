// How baton-driver and baton-keeper begin and end.
#ifndef SUPERVISOR_DRIVER_SERVICE_PROGRAM_H_
#define SUPERVISOR_DRIVER_SERVICE_PROGRAM_H_

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::driver_process {

// Reads a KeeperConfig in text format from standard input. None: the input is something else.
std::optional<internal::KeeperConfig> ReadConfig();

// Logs to standard error from now on, as the configuration says. `process`: the program's name
// without "baton-". It starts no thread, and only the caller's thread logs.
void BeginLog(const internal::KeeperConfig& config, std::string_view process);

// These two log why the service cannot be started, or ends, and write it down for operators
// (SetDownReason). Both return the exit status. After EndFor() SIGALRM ends the process within
// seconds, because the destructors that take down the rest of a lost device may hang.
int FailToStart(const internal::KeeperConfig& config, const absl::Status& why);
int EndFor(const internal::KeeperConfig& config, const absl::Status& why);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_SERVICE_PROGRAM_H_
