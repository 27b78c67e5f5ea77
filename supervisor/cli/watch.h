#ifndef SUPERVISOR_CLI_WATCH_H_
#define SUPERVISOR_CLI_WATCH_H_

#include "absl/status/status.h"
#include "supervisor/cli/session.h"

namespace baton {

// Does session->action every session->watch_seconds, until SIGINT, which is a good end: in the
// same place of a terminal, otherwise with an empty line before every look but the first. A control
// that goes away is waited for, once the first look has succeeded.
absl::Status Watch(Session* session);

// Whether the next look may succeed where this one has failed.
bool MayPass(const absl::Status& status);

}  // namespace baton

#endif  // SUPERVISOR_CLI_WATCH_H_
