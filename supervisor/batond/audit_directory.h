#ifndef SUPERVISOR_BATOND_AUDIT_DIRECTORY_H_
#define SUPERVISOR_BATOND_AUDIT_DIRECTORY_H_

#include <optional>
#include <string>

#include "supervisor/batond/spawn.h"

namespace baton {

// Returns the directory where control keeps the audit trail. Control runs as `user` [batond's].
// Makes the directory, gives it and the files of the trail to that user, and moves the files there
// if control ran as another user before. Then it makes a link to the file in `state_dir`, which is
// open, for `baton audit --verify`.
//
// If the unit has LogsDirectory=, the trail is in the first of these directories, because the state
// directory may not survive a reboot. Otherwise it is in `state_dir`. With a `user` the trail is in
// a directory of that user's there. The rest stays batond's, which opens services' logs there and
// must not follow a link of a control that an attacker has taken over.
//
// Logs a failure and goes on: the operators' work matters more than its record. REQUIRES: no
// control runs.
std::string MakeAuditDirectory(const std::string& state_dir,
                               const std::optional<ProgramUser>& user);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_AUDIT_DIRECTORY_H_
