#ifndef SUPERVISOR_BATOND_AUDIT_DIRECTORY_H_
#define SUPERVISOR_BATOND_AUDIT_DIRECTORY_H_

#include <optional>
#include <string>

#include "supervisor/batond/spawn.h"

namespace baton {

// Where control, which runs as `user` [ours], keeps the audit trail. Makes the directory, gives it
// and the files of the trail to that user, and moves the files there if control was somebody else
// before. `state_dir`, which is open, has a link to the file then, for `baton audit --verify`.
//
// The trail is in the first of systemd's directories for logs, where the unit has LogsDirectory=,
// since what is in the state directory may end with the machine's run; otherwise in `state_dir`.
// With a `user` it is in a directory of that user's there: the rest stays ours, so that no link of
// a control that was taken over is followed by batond, which opens services' logs there.
//
// A failure is logged and stops nothing: in such trouble the operators' work matters more than its
// record. REQUIRES: no control runs.
std::string MakeAuditDirectory(const std::string& state_dir,
                               const std::optional<ProgramUser>& user);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_AUDIT_DIRECTORY_H_
